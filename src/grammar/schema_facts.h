// What a JSON schema says, with its ands and ors carried out: a list of alternatives, each of which is a
// plain conjunction of facts about a value. Schemas of members and elements are named, not looked into, so
// that recursion ends.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/characters.h"
#include "grammar/compile_clock.h"
#include "grammar/grammar.h"
#include "grammar/languages.h"
#include "grammar/number_text.h"

namespace nibble {

// A schema of the document by its number, or its negation.
struct Term {
  std::uint32_t schema = 0;
  bool negated = false;
  auto operator<=>(const Term&) const = default;
};
// All of them hold; ascending and distinct.
using Terms = std::vector<Term>;
void add_term(Terms& terms, Term term);

using JsonTypes = std::uint8_t;
inline constexpr JsonTypes kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                           kObject = 64, kAllTypes = 127;

struct Facts {
  JsonTypes types = kAllTypes;
  std::optional<std::vector<JsonValue>> values;  // the only ones
  std::vector<JsonValue> excluded;  // no lists or objects: what is unlike one is said of its parts

  std::vector<Language> strings;  // of a string's inside, in TextForm::json
  std::vector<Language> texts;    // the same in TextForm::plain, where the reader was asked for both
  std::uint32_t least_length = 0, most_length = kUnbounded;

  std::vector<NumberLimit> limits;
  std::vector<NumberFacts::Multiple> multiples;

  // What one schema says about members: those without a property or a pattern are `additional`.
  struct Members {
    std::vector<std::pair<std::string_view, Term>> properties;
    std::vector<std::pair<Language, Term>> patterns;
    Term additional;
    bool operator==(const Members&) const = default;
  };
  std::vector<Members> members;
  std::vector<std::string_view> required;
  // A member must be there that has one of the names, as json_inside() spells them, and satisfies the term.
  struct SomeMember {
    Language names = kNothing;
    Term term;
    std::string path;
    bool operator==(const SomeMember& other) const { return names == other.names && term == other.term; }
  };
  std::vector<SomeMember> some_members;
  Terms names;
  std::uint32_t least_members = 0, most_members = kUnbounded;

  struct Elements {
    std::vector<Term> first;
    Term rest;
    bool operator==(const Elements&) const = default;
  };
  std::vector<Elements> elements;
  std::uint32_t least_elements = 0, most_elements = kUnbounded;
  std::string unique_path;  // of the keyword that asks for elements that differ; empty: none does
  // So many elements satisfy the term.
  struct Contains {
    Term term;
    std::uint32_t least = 1, most = kUnbounded;
    std::string path;
    std::uint32_t from = 0;  // elements before it are not counted
    bool operator==(const Contains& other) const {
      return term == other.term && least == other.least && most == other.most && from == other.from;
    }
  };
  std::vector<Contains> contains;
};

// Of a number both types that numbers have.
JsonTypes types_of(JsonValue value);
// A text as it stands between a JSON string's quotes.
std::string json_inside(std::string_view text);

class SchemaReader {
 public:
  SchemaReader(JsonValue root, Languages& languages, const CompileLimits& limits);

  static constexpr Term kTrue{0, false};
  static constexpr Term kFalse{0, true};
  Term root() const { return {1, false}; }

  // An empty list: nothing fits.
  Result<std::vector<Facts>> alternatives(const Terms& terms);
  Result<bool> holds(JsonValue value, const Terms& terms);
  Result<bool> holds(JsonValue value, const Facts& facts);
  // What the value of a member of this name must satisfy.
  Terms terms_of(const Facts& facts, std::string_view member);
  // The names that satisfy all of the terms, as json_inside() spells them.
  Result<Language> names_of(const Terms& terms);
  // Whether propertyNames allow it.
  Result<bool> name_fits(std::string_view name, const Facts& facts);
  bool accepts(Language language, std::string_view text);
  Language string_inside(const Facts& facts);
  // A string as a text that stands for itself; needs also_plain().
  Language plain_string(const Facts& facts);
  // What is read from now on says of strings what they are as plain texts, too.
  void also_plain() { plain_ = true; }
  NumberFacts number_facts(const Facts& facts, JsonTypes types) const;
  Status check_budget();

  // A name between its quotes, in TextForm::json.
  Language name_inside(std::string_view name);

  static bool equal(JsonValue a, JsonValue b);

 private:
  struct Schema {
    std::optional<JsonValue> value;  // none: true
    std::string path;
  };
  using Alternatives = std::vector<Facts>;

  Term schema_at(JsonValue value, std::string path);
  void find_identifiers(JsonValue value, const std::string& path, int depth);
  Result<Term> reference(std::string_view target, const std::string& path);
  Result<Alternatives> expand(Term term, int depth);
  Result<Alternatives> expand_positive(JsonValue schema, const std::string& path, int depth);
  Result<Alternatives> expand_negative(JsonValue schema, const std::string& path, int depth);
  Result<Facts> local_facts(JsonValue schema, const std::string& path);
  Status type_facts(JsonValue schema, const std::string& path, Facts& facts);
  Status string_facts(JsonValue schema, const std::string& path, Facts& facts);
  Status number_facts_of(JsonValue schema, const std::string& path, Facts& facts);
  Status object_facts(JsonValue schema, const std::string& path, Facts& facts);
  Status array_facts(JsonValue schema, const std::string& path, Facts& facts);
  Status refuse_unsupported(JsonValue schema, const std::string& path);
  // The schemas that allOf, anyOf or oneOf lists; none where the keyword is absent.
  Result<Terms> listed(JsonValue schema, std::string_view keyword, const std::string& path);
  Result<Alternatives> negative_values(const Facts& local, const std::string& path, int depth);
  Result<Alternatives> negative_members(const Facts& local, const std::string& path);
  Result<Alternatives> negative_applicators(JsonValue schema, const std::string& path, int depth);
  Result<Alternatives> negative_dependents(JsonValue schema, const std::string& path, int depth);
  Result<Alternatives> alternatives_of(Term a, Term b, int depth);
  Result<Alternatives> dependents(JsonValue schema, const std::string& path, Alternatives all, int depth);
  // What `beside` says holds as well.
  Result<Alternatives> one_of(const Terms& terms, const Alternatives& beside, const std::string& path,
                              int depth);
  static Alternatives within(const Alternatives& ways, const Alternatives& beside);
  // The types of values that both may have; more than there are where that is not known.
  Result<JsonTypes> common_types(const Facts& a, const Facts& b, int depth);
  Result<JsonTypes> common_types(const Alternatives& a, const Alternatives& b);
  // Whether members must be there that must not.
  bool contradicts_itself(const Facts& facts);
  bool no_given_value_fits(const Terms& terms);
  bool is_within(const Facts& a, const Facts& b);
  bool objects_within(const Facts& a, const Facts& b);
  void drop_within(Alternatives& ways);
  Result<Alternatives> both(Alternatives a, const Alternatives& b, const std::string& path);
  static std::optional<Facts> merge(const Facts& a, const Facts& b);
  Result<std::uint32_t> count(JsonValue value, const std::string& path, std::string_view keyword) const;
  Result<Language> pattern(std::string_view pattern, TextForm form);

  Languages& languages_;
  Language any_character_, canonical_;  // inside a string in all its spellings, and in the usual one
  const CompileLimits& limits_;
  CompileClock clock_;
  JsonValue document_;
  bool plain_ = false;   // strings are asked for as plain texts
  bool partly_ = false;  // a format was read of which not all texts are known: they may fit nevertheless
  bool legacy_ = false;  // a draft before 2019-09: what stands beside $ref says nothing
  std::vector<Schema> schemas_;
  std::deque<JsonDocument> made_;  // of schemas that say what a list or an object is
  std::unordered_map<std::string, std::uint32_t> by_path_;
  std::unordered_map<std::string, std::pair<JsonValue, std::string>> by_name_;
  std::unordered_map<std::uint64_t, Alternatives> known_;
  // Of those that say one thing in many places.
  std::unordered_map<std::string, Language> patterns_;  // behind a letter for the form
  std::unordered_map<std::string, Language> names_;
  std::vector<Term> open_;  // being expanded, to find a $ref that leads to itself
};

}  // namespace nibble
