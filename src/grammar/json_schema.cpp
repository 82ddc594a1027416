// A JSON schema's facts to symbols.
#include <algorithm>
#include <utility>

#include "base/json_writer.h"
#include "grammar/characters.h"
#include "grammar/grammar_data.h"
#include "grammar/schema_compiler.h"

namespace nibble {
namespace {

constexpr std::uint32_t kMostCounted = 0x7FF0;
constexpr std::size_t kMostPatterns = 6;
constexpr std::size_t kMostContains = 3;
constexpr std::size_t kMostCountedPlaces = std::size_t{1} << 16;  // of one array
constexpr std::size_t kMostOpposedWays = 128;
constexpr std::uint32_t kMostIndent = 80;
// Of elements that differ: so many are counted to learn whether there are as many as are asked for.
constexpr std::uint32_t kMostGivenElements = 1000;

}  // namespace

SchemaCompiler::SchemaCompiler(Symbols& symbols, JsonValue schema, const SchemaOptions& options,
                               const CompileLimits& limits)
    : symbols_(symbols), reader_(schema, symbols.languages, limits) {
  Languages& languages = symbols_.languages;
  if (options.whitespace != JsonWhitespace::compact) blank_ = languages.repeat(languages.literal(" "), 0, 1);
  colon_ = languages.concat(languages.literal(":"), blank_);
  if (options.whitespace == JsonWhitespace::flexible) {
    ByteSet indent;
    for (const unsigned blank : {' ', '\t'}) indent.add(blank);
    const Language line =
        languages.concat({languages.repeat(languages.literal("\r"), 0, 1), languages.literal("\n"),
                          languages.repeat(languages.bytes(indent), 0, kMostIndent)});
    blank_ = languages.any_of({blank_, line});
  }
  quote_ = languages.literal("\"");
  comma_ = languages.concat(languages.literal(","), blank_);
  any_character_ = any_json_character(languages);
  canonical_ = characters(languages, CharacterSet::all(), TextForm::json);
  languages.add_plain_character(any_character_);
  languages.add_plain_character(canonical_);
}

Result<SymbolId> SchemaCompiler::compile(const Terms& terms, JsonTypes types) {
  if (types == kAllTypes) {
    const SymbolId made = symbol(terms);
    NIBBLE_RETURN_IF_ERROR(compile_waiting());
    return made;
  }
  // A $ref to the schema means all of its values.
  NIBBLE_ASSIGN(const SymbolId made, value(terms, types));
  NIBBLE_RETURN_IF_ERROR(compile_waiting());
  return made;
}

// Schemas of members and elements wait in line, so that a deep schema is no deep recursion.
Status SchemaCompiler::compile_waiting() {
  while (done_ < waiting_.size()) {
    const auto [terms, place] = waiting_[done_++];
    NIBBLE_RETURN_IF_ERROR(reader_.check_budget());
    NIBBLE_ASSIGN(const SymbolId made, value(terms, kAllTypes));
    symbols_.symbols[place] = symbols_.symbols[made];
  }
  return {};
}

SymbolId SchemaCompiler::symbol(Terms terms) {
  const auto [at, added] = known_.try_emplace(std::move(terms), kNoSymbol);
  if (added) {
    at->second = symbols_.add({});
    waiting_.emplace_back(at->first, at->second);
  }
  return at->second;
}

Result<SymbolId> SchemaCompiler::value(const Terms& terms, JsonTypes types) {
  NIBBLE_ASSIGN(std::vector<Facts> ways, reader_.alternatives(terms));
  std::size_t object_ways = 0;
  for (const Facts& way : ways) {
    if (way.values || !(way.types & kObject)) continue;
    // The sets of things asked for, of which each place has some, squared.
    object_ways += std::size_t{1} << 2 * (std::max<std::size_t>(way.some_members.size(), 1) - 1);
    if (asked_path_.empty() && !way.some_members.empty()) asked_path_ = way.some_members.front().path;
  }
  most_ways_ = std::max(most_ways_, object_ways);
  // Each way has all members, and what stands behind a key is as many places: tens of milliseconds.
  if (!asked_path_.empty() && most_ways_ > kMostOpposedWays)
    return invalid_argument(asked_path_ + ": is not supported where its opposite is needed and an object " +
                            "may be read in more than " + std::to_string(kMostOpposedWays) + " ways");
  std::vector<Language> texts;
  std::vector<SymbolId> others;
  for (Facts& facts : ways) {
    facts.types &= types;
    NIBBLE_RETURN_IF_ERROR(add(facts, texts, others));
  }
  others.push_back(symbols_.text(symbols_.languages.any_of(texts)));
  return symbols_.choice(others);
}

Status SchemaCompiler::add(const Facts& facts, std::vector<Language>& texts, std::vector<SymbolId>& others) {
  Languages& languages = symbols_.languages;
  if (facts.values) {
    // That it is one of them need not be found for each.
    Facts rest = facts;
    rest.values.reset();
    for (const JsonValue each : *facts.values) {
      NIBBLE_ASSIGN(const bool fits, reader_.holds(each, rest));
      if (fits) texts.push_back(given(each));
    }
    return {};
  }
  const auto excluded = [&](JsonType type) {
    return std::any_of(facts.excluded.begin(), facts.excluded.end(),
                       [&](JsonValue v) { return v.type() == type; });
  };
  if (facts.types & kNull && !excluded(JsonType::null)) texts.push_back(languages.literal("null"));
  if (facts.types & kBoolean) {
    for (const bool truth : {true, false}) {
      const bool out = std::any_of(facts.excluded.begin(), facts.excluded.end(),
                                   [&](JsonValue v) { return v.is_bool() && v.as_bool() == truth; });
      if (!out) texts.push_back(languages.literal(truth ? "true" : "false"));
    }
  }
  if (facts.types & (kInteger | kFraction)) texts.push_back(number(facts));
  if (facts.types & kString)
    texts.push_back(languages.concat({quote_, held(reader_.string_inside(facts)), quote_}));
  if (facts.types & kArray) {
    NIBBLE_RETURN_IF_ERROR(add_array(facts, others));
  }
  if (facts.types & kObject) {
    NIBBLE_RETURN_IF_ERROR(add_object(facts, others));
  }
  return {};
}

Language SchemaCompiler::number(const Facts& facts) {
  Languages& languages = symbols_.languages;
  NumberFacts asked = reader_.number_facts(facts, facts.types);
  std::vector<Language> parts;
  for (const JsonValue value : facts.excluded) {
    if (!value.is_number()) continue;
    // Other spellings of the number are left out with it: a limit on both sides keeps exponents away.
    const Language zeros = languages.repeat(languages.literal("0"), 0, kUnbounded);
    const std::string text = decimal_of(value);
    const Language tail = text.find('.') == std::string::npos
                              ? languages.repeat(languages.concat(languages.literal("."), zeros), 0, 1)
                              : zeros;
    Language spelled = languages.concat(languages.literal(text), tail);
    if (value.as_double() == 0)
      spelled = languages.any_of({spelled, languages.concat(languages.literal("-"), spelled)});
    parts.push_back(languages.except(spelled));
  }
  if (!parts.empty()) asked.plain_decimals = true;
  parts.push_back(numbers(languages, asked));
  return languages.all_of(parts);
}

// The one value, its members in their order.
Language SchemaCompiler::given(JsonValue value) {
  Languages& languages = symbols_.languages;
  std::string text;
  switch (value.type()) {
    case JsonType::array:
    case JsonType::object: {
      const bool object = value.is_object();
      std::vector<Language> parts{languages.literal(object ? "{" : "["), blank_};
      bool first = true;
      const auto separate = [&] {
        if (!first) parts.push_back(comma_);
        first = false;
      };
      if (object) {
        for (const auto [name, member] : value.members()) {
          separate();
          parts.push_back(key(name));
          parts.push_back(colon_);
          parts.push_back(given(member));
        }
      } else {
        for (const JsonValue each : value.elements()) {
          separate();
          parts.push_back(given(each));
        }
      }
      if (!first) parts.push_back(blank_);
      parts.push_back(languages.literal(object ? "}" : "]"));
      Language made = kEmptyText;
      for (std::size_t i = parts.size(); i-- > 0;) made = languages.concat(parts[i], made);
      return made;
    }
    case JsonType::string:
      return languages.concat({quote_, held(text_of(languages, value.as_string(), TextForm::json)), quote_});
    case JsonType::real: {
      JsonWriter(text).value(value.as_double());
      const std::string plain = decimal_of(value);
      return languages.any_of({languages.literal(text), languages.literal(plain)});
    }
    case JsonType::integer: return languages.literal(std::to_string(value.as_integer()));
    case JsonType::boolean: return languages.literal(value.as_bool() ? "true" : "false");
    case JsonType::null: return languages.literal("null");
  }
  return kNothing;
}

// A name in its quotes.
Language SchemaCompiler::key(std::string_view name) {
  const auto [at, added] = keys_.try_emplace(std::string(name), kNothing);
  if (added) at->second = symbols_.languages.concat({quote_, reader_.name_inside(name), quote_});
  return at->second;
}

Status SchemaCompiler::add_object(const Facts& facts, std::vector<SymbolId>& others) {
  Languages& languages = symbols_.languages;
  ObjectShape object;
  object.open = languages.literal("{");
  object.before_first = blank_;
  object.comma = comma_;
  object.colon = colon_;
  object.close = languages.concat({blank_, languages.literal("}")});
  if (std::max(facts.least_members, facts.most_members == kUnbounded ? 0 : facts.most_members) > kMostCounted)
    return invalid_argument("minProperties or maxProperties of more than " + std::to_string(kMostCounted) +
                            " is not supported");
  object.least = facts.least_members;
  object.most = facts.most_members;
  // One name alone is never twice.
  object.distinct = object.least > 1;

  if (!facts.some_members.empty()) {
    const auto refuse = [&](std::string_view beside) {
      return invalid_argument(facts.some_members.front().path +
                              ": is not supported where its opposite is needed beside " +
                              std::string(beside));
    };
    if (object.distinct) return refuse("minProperties of more than 1");
    if (facts.some_members.size() > kMostAsked)
      return refuse(std::to_string(kMostAsked) + " other such ones");
    if (object.most != kUnbounded && object.most > kMostCountedBesideAsked)
      return refuse("maxProperties of more than " + std::to_string(kMostCountedBesideAsked));
    object.asked.emplace().things = static_cast<std::uint32_t>(facts.some_members.size());
  }

  std::vector<std::string_view> names;
  std::unordered_map<std::string_view, bool> seen;
  for (const Facts::Members& members : facts.members)
    for (const auto& [name, term] : members.properties)
      if (seen.try_emplace(name, false).second) names.push_back(name);
  for (const std::string_view name : facts.required) {
    bool& required = seen.try_emplace(name, false).first->second;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    required = true;
  }
  std::vector<Language> declared;
  for (const std::string_view name : names) {
    declared.push_back(reader_.name_inside(name));
    NIBBLE_ASSIGN(bool fits, reader_.name_fits(name, facts));
    fits = fits && (inside_ == kEverything || reader_.accepts(inside_, json_inside(name)));
    const Terms terms = fits ? reader_.terms_of(facts, name) : Terms{SchemaReader::kFalse};
    if (std::binary_search(terms.begin(), terms.end(), SchemaReader::kFalse)) {
      if (seen[name]) return {};  // required and not allowed: no object fits
      continue;
    }
    object.members.push_back({.key = key(name), .value = symbol(terms), .required = seen[name]});
    for (AskedSet as = 1; object.asked && as <= object.asked->all(); ++as) {
      const auto has_name = [&](const Facts::SomeMember& asked) {
        return reader_.accepts(asked.names, json_inside(name));
      };
      object.asked->values.push_back(asked_symbol(facts, terms, as, has_name));
    }
  }
  if (object.members.size() > kMostCounted)
    return invalid_argument("more than " + std::to_string(kMostCounted) + " properties are not supported");
  NIBBLE_RETURN_IF_ERROR(add_others(facts, languages.any_of(declared), object));
  symbols_.objects.push_back(std::move(object));
  others.push_back(symbols_.add(
      {.kind = Symbol::Kind::object, .a = static_cast<std::uint32_t>(symbols_.objects.size() - 1)}));
  return {};
}

// A member that is all things of the set; kNoSymbol where none can be, or has the name.
template <class HasName>
SymbolId SchemaCompiler::asked_symbol(const Facts& facts, Terms terms, AskedSet as, const HasName& has_name) {
  for (std::size_t i = 0; i < facts.some_members.size(); ++i) {
    if ((as >> i & 1) == 0) continue;
    const Facts::SomeMember& asked = facts.some_members[i];
    if (!has_name(asked)) return kNoSymbol;
    if (asked.term != SchemaReader::kTrue) add_term(terms, asked.term);
  }
  const bool none = std::binary_search(terms.begin(), terms.end(), SchemaReader::kFalse);
  return none ? kNoSymbol : symbol(std::move(terms));
}

// Of undeclared members with one of the names, and with values of these terms.
Status SchemaCompiler::add_asked_others(const Facts& facts, Language names, const Terms& terms,
                                        AskedMembers& asked) {
  Languages& languages = symbols_.languages;
  for (AskedSet as = 1; as <= asked.all(); ++as) {
    std::vector<Language> parts{names};
    for (std::size_t i = 0; i < facts.some_members.size(); ++i)
      if (as >> i & 1) parts.push_back(facts.some_members[i].names);
    const Language named = languages.all_of(parts);
    if (languages.is_empty(named)) continue;
    const SymbolId value = asked_symbol(facts, terms, as, [](const Facts::SomeMember&) { return true; });
    if (value == kNoSymbol) continue;
    // Of one thing's names the others may take all but one.
    if (languages.count_texts(named, asked.things) < asked.things)
      return invalid_argument(facts.some_members.front().path +
                              ": is not supported where its opposite is needed beside another such one of " +
                              "members with few names that are not declared");
    asked.others.push_back({.key = languages.concat({quote_, named, quote_}), .value = value, .as = as});
  }
  return {};
}

// Members that are not declared, by which of the patterns their names have.
Status SchemaCompiler::add_others(const Facts& facts, Language declared, ObjectShape& object) {
  Languages& languages = symbols_.languages;
  std::vector<Language> patterns;
  for (const Facts::Members& members : facts.members)
    for (const auto& [language, term] : members.patterns)
      if (std::find(patterns.begin(), patterns.end(), language) == patterns.end())
        patterns.push_back(language);
  if (patterns.size() > kMostPatterns)
    return invalid_argument("more than " + std::to_string(kMostPatterns) +
                            " patternProperties that meet are not supported");
  Language allowed = kEverything;
  if (!facts.names.empty()) {
    NIBBLE_ASSIGN(allowed, reader_.names_of(facts.names));
  }
  for (std::uint32_t chosen = 0; chosen < 1u << patterns.size(); ++chosen) {
    Terms terms;
    for (const Facts::Members& members : facts.members) {
      bool found = false;
      for (const auto& [language, term] : members.patterns) {
        const auto i = std::find(patterns.begin(), patterns.end(), language) - patterns.begin();
        if (!(chosen >> i & 1)) continue;
        found = true;
        if (term != SchemaReader::kTrue) add_term(terms, term);
      }
      if (!found && members.additional != SchemaReader::kTrue) add_term(terms, members.additional);
    }
    if (std::binary_search(terms.begin(), terms.end(), SchemaReader::kFalse)) continue;
    std::vector<Language> parts{allowed, languages.except(declared)};
    for (std::size_t i = 0; i < patterns.size(); ++i)
      parts.push_back(chosen >> i & 1 ? patterns[i] : languages.except(patterns[i]));
    Language name = languages.all_of(parts);
    if (name == kEverything && !object.distinct && !object.asked) {
      name = languages.repeat(any_character_, 0, kUnbounded);
    } else {
      name = languages.all_of({name, languages.repeat(canonical_, 0, kUnbounded)});
    }
    name = held(name);
    if (languages.is_empty(name)) continue;
    if (object.asked) NIBBLE_RETURN_IF_ERROR(add_asked_others(facts, name, terms, *object.asked));
    object.others.push_back({.key = languages.concat({quote_, name, quote_}), .value = symbol(terms)});
    if (object.distinct) {
      const std::uint32_t names = languages.count_texts(name, object.least);
      if (names < object.least) object.others.back().names = names;
    }
  }
  return {};
}

Status SchemaCompiler::add_array(const Facts& facts, std::vector<SymbolId>& others) {
  Languages& languages = symbols_.languages;
  ArrayShape array;
  array.open = languages.literal("[");
  array.before_first = blank_;
  array.comma = comma_;
  array.close = languages.concat({blank_, languages.literal("]")});
  array.least = facts.least_elements;
  array.most = facts.most_elements;
  std::size_t first = 0;
  for (const Facts::Elements& elements : facts.elements) first = std::max(first, elements.first.size());
  for (const Facts::Contains& contains : facts.contains) first = std::max<std::size_t>(first, contains.from);
  first = std::min<std::size_t>(first, facts.most_elements);
  if (!facts.contains.empty()) NIBBLE_RETURN_IF_ERROR(count_elements(facts, first, array));
  for (std::size_t i = 0; i <= first && !array.counted; ++i) {
    const SymbolId element = element_symbol(facts, i, {});
    if (i == first) {
      array.rest = element;
    } else if (element == kNoSymbol) {
      array.most = std::min<std::uint32_t>(array.most, static_cast<std::uint32_t>(i));
      break;
    } else {
      array.first.push_back(element);
    }
  }
  if (!facts.unique_path.empty() && array.most > 1) NIBBLE_RETURN_IF_ERROR(keep_apart(facts, array));
  if (array.least > array.most) return {};
  symbols_.arrays.push_back(std::move(array));
  others.push_back(symbols_.add(
      {.kind = Symbol::Kind::array, .a = static_cast<std::uint32_t>(symbols_.arrays.size() - 1)}));
  return {};
}

// The element at a place, with what else it must be; kNoSymbol where none may come.
SymbolId SchemaCompiler::element_symbol(const Facts& facts, std::size_t place, Terms terms) {
  for (const Facts::Elements& elements : facts.elements) {
    const Term term = place < elements.first.size() ? elements.first[place] : elements.rest;
    if (term != SchemaReader::kTrue) add_term(terms, term);
  }
  std::erase(terms, SchemaReader::kTrue);
  return std::binary_search(terms.begin(), terms.end(), SchemaReader::kFalse) ? kNoSymbol : symbol(terms);
}

// Elements that are what `contains` counts, and the others. Where there is no most, an element need not be
// counted.
Status SchemaCompiler::count_elements(const Facts& facts, std::size_t first, ArrayShape& array) {
  const std::string& path = facts.contains.front().path;
  if (facts.contains.size() > kMostContains)
    return invalid_argument(path + ": is not supported beside " + std::to_string(kMostContains) +
                            " others of the same array");
  CountedElements& counted = array.counted.emplace();
  std::size_t enough = std::max<std::size_t>(array.least, first), most = 0;
  for (const Facts::Contains& asked : facts.contains) {
    counted.things.push_back({.least = asked.least, .most = asked.most});
    enough += asked.least;
    most = std::max<std::size_t>(most, counted.things.back().last());
  }
  if (array.most != kUnbounded) most = std::max<std::size_t>(most, array.most);
  const bool simple = counted.things.size() == 1 && counted.things.front().most == kUnbounded;
  if (std::max({enough, most, std::size_t{counted.numbers()}}) > kMostCounted ||
      (!simple && enough * counted.numbers() > kMostCountedPlaces))
    return invalid_argument(path + ": is not supported with bounds that large");
  for (std::uint32_t set = 0; set < 1u << facts.contains.size(); ++set) {
    CountedElements::Element& element = counted.as.emplace_back();
    for (std::size_t i = 0; i < first; ++i) element.first.push_back(counted_symbol(facts, i, set));
    element.rest = counted_symbol(facts, first, set);
  }
  return {};
}

// The element at a place that is all things of the set, and none of the others that there may be too many of.
SymbolId SchemaCompiler::counted_symbol(const Facts& facts, std::size_t place, std::uint32_t set) {
  Terms also;
  for (std::size_t i = 0; i < facts.contains.size(); ++i) {
    const Facts::Contains& asked = facts.contains[i];
    const bool counts = place >= asked.from, is = (set >> i & 1) != 0;
    if (is && !counts) return kNoSymbol;
    if (is) add_term(also, asked.term);
    if (!is && counts && asked.most != kUnbounded) add_term(also, {asked.term.schema, !asked.term.negated});
  }
  return element_symbol(facts, place, std::move(also));
}

// Elements that differ are told apart by their texts, so each value must have one.
Status SchemaCompiler::keep_apart(const Facts& facts, ArrayShape& array) {
  Languages& languages = symbols_.languages;
  const auto refuse = [&](std::string_view why) {
    return invalid_argument(facts.unique_path + ": is supported where all elements are strings, numbers, " +
                            "booleans, null or given ones of these; " + std::string(why));
  };
  if (!array.first.empty()) return refuse("prefixItems stand beside it");
  if (array.counted) return refuse("contains stands beside it");
  if (array.rest == kNoSymbol) return {};
  Terms terms;
  for (const Facts::Elements& elements : facts.elements)
    if (elements.rest != SchemaReader::kTrue) add_term(terms, elements.rest);
  NIBBLE_ASSIGN(const std::vector<Facts> ways, reader_.alternatives(terms));
  std::vector<Language> texts;
  for (const Facts& way : ways) {
    if (way.values) {
      for (const JsonValue each : *way.values) {
        NIBBLE_ASSIGN(const bool fits, reader_.holds(each, way));
        if (!fits) continue;
        if (each.is_array() || each.is_object()) return refuse("a given one is a list or an object");
        texts.push_back(each.is_number() ? languages.literal(decimal_of(each)) : given(each));
      }
      continue;
    }
    if (way.types & (kArray | kObject)) return refuse("an element may be a list or an object");
    std::vector<SymbolId> none;
    Facts scalar = way;
    scalar.types = static_cast<JsonTypes>(way.types & (kNull | kBoolean));
    NIBBLE_RETURN_IF_ERROR(add(scalar, texts, none));
    if (way.types & kString) {
      const Language inside =
          held(languages.all_of({reader_.string_inside(way), languages.repeat(canonical_, 0, kUnbounded)}));
      texts.push_back(languages.concat({quote_, inside, quote_}));
    }
    if (way.types & (kInteger | kFraction))
      texts.push_back(languages.all_of({number(way), one_spelling_of_numbers()}));
  }
  const Language element = languages.any_of(texts);
  array.rest = symbols_.text(element);
  array.distinct = true;
  const std::uint32_t asked =
      array.most == kUnbounded ? std::max(array.least, kMostGivenElements) : array.most;
  const std::uint32_t values = languages.count_texts(element, std::min(asked, kMostGivenElements));
  if (values < std::min(asked, kMostGivenElements)) array.most = values;
  if (array.least > kMostGivenElements)
    return refuse("minItems of more than " + std::to_string(kMostGivenElements) + " stands beside it");
  return {};
}

// No exponent, no zeros at a fraction's end, no minus before 0.
Language SchemaCompiler::one_spelling_of_numbers() {
  Languages& languages = symbols_.languages;
  const Language digit = languages.bytes(ByteSet::range('0', '9'));
  const Language fraction = languages.concat({languages.literal("."), languages.repeat(digit, 0, kUnbounded),
                                              languages.bytes(ByteSet::range('1', '9'))});
  const Language spelled =
      languages.concat({languages.repeat(languages.literal("-"), 0, 1),
                        languages.repeat(digit, 1, kUnbounded), languages.repeat(fraction, 0, 1)});
  return languages.all_of({spelled, languages.except(languages.literal("-0"))});
}

Result<std::shared_ptr<const Grammar>> compile_json_schema(JsonValue schema, const SchemaOptions& options,
                                                           const CompileLimits& limits) {
  if (!schema.is_object() && !schema.is_bool())
    return invalid_argument("#: a schema is an object, true or false, not " +
                            std::string(json_type_name(schema.type())));
  Symbols symbols;
  SchemaCompiler compiler(symbols, schema, options, limits);
  const Term root = schema.is_object() ? compiler.reader().root()
                    : schema.as_bool() ? SchemaReader::kTrue
                                       : SchemaReader::kFalse;
  NIBBLE_ASSIGN(symbols.root, compiler.compile({root}));
  return finish_grammar(std::move(symbols), limits);
}

Result<std::shared_ptr<const Grammar>> compile_json_object(const SchemaOptions& options) {
  NIBBLE_ASSIGN(const JsonDocument schema, JsonDocument::parse(R"({"type":"object"})"));
  return compile_json_schema(schema.root(), options);
}

}  // namespace nibble
