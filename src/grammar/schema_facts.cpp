#include "grammar/schema_facts.h"

#include <algorithm>

#include "base/quote.h"
#include "grammar/characters.h"
#include "grammar/formats.h"

namespace nibble {

namespace {

constexpr std::size_t kMostAlternatives = 2000;

}  // namespace

void add_term(Terms& terms, Term term) {
  const auto at = std::lower_bound(terms.begin(), terms.end(), term);
  if (at == terms.end() || *at != term) terms.insert(at, term);
}

SchemaReader::SchemaReader(JsonValue root, Languages& languages, const CompileLimits& limits)
    : languages_(languages),
      any_character_(any_json_character(languages)),
      canonical_(characters(languages, CharacterSet::all(), TextForm::json)),
      limits_(limits),
      clock_(limits),
      document_(root) {
  languages_.add_plain_character(any_character_);
  languages_.add_plain_character(canonical_);
  schemas_.push_back({std::nullopt, "#"});
  const auto draft = root.find("$schema");
  if (draft && draft->is_string()) legacy_ = draft->as_string().find("draft-0") != std::string_view::npos;
  schema_at(root, "#");
  find_identifiers(root, "#", 0);
}

Status SchemaReader::check_budget() {
  NIBBLE_RETURN_IF_ERROR(clock_.check());
  if (languages_.size() > limits_.max_states)
    return invalid_argument("the schema has more than " + std::to_string(limits_.max_states) +
                            " states; give a simpler one");
  return {};
}

Term SchemaReader::schema_at(JsonValue value, std::string path) {
  if (value.type() == JsonType::boolean) return value.as_bool() ? kTrue : kFalse;
  const auto [at, added] = by_path_.try_emplace(path, static_cast<std::uint32_t>(schemas_.size()));
  if (added) schemas_.push_back({value, std::move(path)});
  return {at->second, false};
}

Result<std::vector<Facts>> SchemaReader::alternatives(const Terms& terms) {
  Alternatives all(1);
  for (const Term term : terms) {
    NIBBLE_ASSIGN(const Alternatives each, expand(term, 0));
    NIBBLE_ASSIGN(all, both(std::move(all), each, schemas_[term.schema].path));
  }
  return all;
}

Result<SchemaReader::Alternatives> SchemaReader::both(Alternatives a, const Alternatives& b,
                                                      const std::string& path) {
  NIBBLE_RETURN_IF_ERROR(check_budget());
  Alternatives out;
  for (const Facts& x : a) {
    for (const Facts& y : b) {
      auto merged = merge(x, y);
      if (merged && (merged->types & kObject) && contradicts_itself(*merged)) {
        merged->types &= static_cast<JsonTypes>(~kObject);
        if (merged->types == 0) merged.reset();
      }
      if (merged) out.push_back(std::move(*merged));
      if (out.size() > kMostAlternatives)
        return invalid_argument(path + ": more than " + std::to_string(kMostAlternatives) +
                                " ways to satisfy it; give a simpler schema");
    }
  }
  drop_within(out);
  return out;
}

std::optional<Facts> SchemaReader::merge(const Facts& a, const Facts& b) {
  Facts out = a;
  out.types = a.types & b.types;
  if (out.types == 0) return std::nullopt;
  if (b.values) {
    if (!a.values) {
      out.values = b.values;
    } else {
      std::erase_if(*out.values, [&](JsonValue value) {
        return std::none_of(b.values->begin(), b.values->end(),
                            [&](JsonValue other) { return equal(value, other); });
      });
    }
  }
  if (out.values && out.values->empty()) return std::nullopt;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(out.excluded, b.excluded);
  append(out.strings, b.strings);
  append(out.texts, b.texts);
  append(out.limits, b.limits);
  append(out.multiples, b.multiples);
  append(out.members, b.members);
  for (const Facts::SomeMember& some : b.some_members)
    if (std::ranges::find(out.some_members, some) == out.some_members.end()) out.some_members.push_back(some);
  append(out.elements, b.elements);
  for (const std::string_view name : b.required)
    if (std::find(out.required.begin(), out.required.end(), name) == out.required.end())
      out.required.push_back(name);
  for (const Term term : b.names) add_term(out.names, term);
  out.least_length = std::max(a.least_length, b.least_length);
  out.most_length = std::min(a.most_length, b.most_length);
  out.least_members = std::max(a.least_members, b.least_members);
  out.most_members = std::min(a.most_members, b.most_members);
  out.least_elements = std::max(a.least_elements, b.least_elements);
  out.most_elements = std::min(a.most_elements, b.most_elements);
  if (out.unique_path.empty()) out.unique_path = b.unique_path;
  for (const Facts::Contains& contains : b.contains)
    if (std::ranges::find(out.contains, contains) == out.contains.end()) out.contains.push_back(contains);
  if (out.least_length > out.most_length) out.types &= static_cast<JsonTypes>(~kString);
  if (out.least_members > out.most_members) out.types &= static_cast<JsonTypes>(~kObject);
  if (out.least_elements > out.most_elements) out.types &= static_cast<JsonTypes>(~kArray);
  if (out.types == 0) return std::nullopt;
  return out;
}

Result<SchemaReader::Alternatives> SchemaReader::expand(Term term, int depth) {
  if (term.schema == kTrue.schema) return Alternatives(term.negated ? 0 : 1);
  const std::uint64_t key = static_cast<std::uint64_t>(term.schema) << 1 | term.negated;
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const std::string path = schemas_[term.schema].path;
  if (std::find(open_.begin(), open_.end(), term) != open_.end())
    return invalid_argument(path + ": a $ref that leads back to itself without a value in between");
  if (depth > limits_.max_depth)
    return invalid_argument(path + ": more than " + std::to_string(limits_.max_depth) +
                            " schemas inside each other");
  NIBBLE_RETURN_IF_ERROR(check_budget());
  const JsonValue schema = *schemas_[term.schema].value;
  if (!schema.is_object())
    return invalid_argument(path + ": a schema is an object, true or false, not " +
                            std::string(json_type_name(schema.type())));
  open_.push_back(term);
  Result<Alternatives> made =
      term.negated ? expand_negative(schema, path, depth) : expand_positive(schema, path, depth);
  open_.pop_back();
  if (made.ok()) known_.emplace(key, *made);
  return made;
}

Result<Terms> SchemaReader::listed(JsonValue schema, std::string_view keyword, const std::string& path) {
  const auto list = schema.find(keyword);
  if (!list) return Terms{};
  const std::string at = path + "/" + std::string(keyword);
  if (!list->is_array() || list->size() == 0)
    return invalid_argument(at + ": must be a list of at least one schema");
  Terms terms;
  for (const JsonValue each : list->elements())
    terms.push_back(schema_at(each, at + "/" + std::to_string(terms.size())));
  return terms;
}

Result<SchemaReader::Alternatives> SchemaReader::expand_positive(JsonValue schema, const std::string& path,
                                                                 int depth) {
  const auto ref = schema.find("$ref");
  if (ref && ref->is_string() && legacy_) {
    NIBBLE_ASSIGN(const Term target, reference(ref->as_string(), path));
    return expand(target, depth + 1);
  }
  NIBBLE_RETURN_IF_ERROR(refuse_unsupported(schema, path));
  NIBBLE_ASSIGN(Facts local, local_facts(schema, path));
  Alternatives all;
  if (local.types != 0) all.push_back(std::move(local));
  if (ref) {
    if (!ref->is_string()) return invalid_argument(path + "/$ref: must be a string");
    NIBBLE_ASSIGN(const Term target, reference(ref->as_string(), path));
    NIBBLE_ASSIGN(const Alternatives there, expand(target, depth + 1));
    NIBBLE_ASSIGN(all, both(std::move(all), there, path));
  }
  for (const std::string_view keyword : {"allOf", "anyOf", "oneOf"}) {
    NIBBLE_ASSIGN(const Terms terms, listed(schema, keyword, path));
    if (terms.empty()) continue;
    const std::string at = path + "/" + std::string(keyword);
    if (keyword == "oneOf") {
      NIBBLE_ASSIGN(const Alternatives one, one_of(terms, all, at, depth));
      NIBBLE_ASSIGN(all, both(std::move(all), one, at));
      continue;
    }
    Alternatives any;
    for (const Term term : terms) {
      NIBBLE_ASSIGN(Alternatives branch, expand(term, depth + 1));
      if (keyword == "allOf") {
        NIBBLE_ASSIGN(all, both(std::move(all), branch, at));
      } else {
        any.insert(any.end(), branch.begin(), branch.end());
      }
    }
    if (keyword == "anyOf") {
      NIBBLE_ASSIGN(all, both(std::move(all), any, at));
    }
  }
  if (const auto inner = schema.find("not")) {
    Term term = schema_at(*inner, path + "/not");
    term.negated = !term.negated;
    NIBBLE_ASSIGN(const Alternatives none, expand(term, depth + 1));
    NIBBLE_ASSIGN(all, both(std::move(all), none, path + "/not"));
  }
  if (const auto condition = schema.find("if"); condition && (schema.find("then") || schema.find("else"))) {
    const Term is = schema_at(*condition, path + "/if");
    const auto branch = [&](std::string_view name) {
      const auto value = schema.find(name);
      return value ? schema_at(*value, path + "/" + std::string(name)) : kTrue;
    };
    NIBBLE_ASSIGN(Alternatives yes, alternatives_of(is, branch("then"), depth));
    NIBBLE_ASSIGN(const Alternatives no, alternatives_of({is.schema, !is.negated}, branch("else"), depth));
    yes.insert(yes.end(), no.begin(), no.end());
    NIBBLE_ASSIGN(all, both(std::move(all), yes, path + "/if"));
  }
  return dependents(schema, path, std::move(all), depth);
}

Result<SchemaReader::Alternatives> SchemaReader::alternatives_of(Term a, Term b, int depth) {
  NIBBLE_ASSIGN(Alternatives first, expand(a, depth + 1));
  NIBBLE_ASSIGN(const Alternatives second, expand(b, depth + 1));
  return both(std::move(first), second, schemas_[a.schema].path);
}

Result<SchemaReader::Alternatives> SchemaReader::dependents(JsonValue schema, const std::string& path,
                                                            Alternatives all, int depth) {
  for (const std::string_view keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const auto list = schema.find(keyword);
    if (!list) continue;
    const std::string at = path + "/" + std::string(keyword);
    if (!list->is_object()) return invalid_argument(at + ": must be an object");
    for (const auto [name, needs] : list->members()) {
      Alternatives ways(1);
      ways[0].members.push_back({.properties = {{name, kFalse}}, .patterns = {}, .additional = kTrue});
      Facts has;
      has.types = kObject;
      has.required.push_back(name);
      if (needs.is_array()) {
        for (const JsonValue other : needs.elements()) {
          if (!other.is_string()) return invalid_argument(at + ": must list names");
          has.required.push_back(other.as_string());
        }
        ways.push_back(std::move(has));
      } else {
        NIBBLE_ASSIGN(const Alternatives then,
                      expand(schema_at(needs, at + "/" + std::string(name)), depth + 1));
        NIBBLE_ASSIGN(const Alternatives with, both({has}, then, at));
        ways.insert(ways.end(), with.begin(), with.end());
      }
      NIBBLE_ASSIGN(all, both(std::move(all), ways, at));
    }
  }
  return all;
}

// The values that fit none of the keywords' whole: those that break one of them.
Result<SchemaReader::Alternatives> SchemaReader::expand_negative(JsonValue schema, const std::string& path,
                                                                 int depth) {
  const auto refuse = [&](std::string_view keyword) {
    return invalid_argument(
        path + "/" + std::string(keyword) +
        ": is not supported where its opposite is needed (inside not, if or an overlapping oneOf)");
  };
  Alternatives out;
  const auto add = [&](Facts facts) { out.push_back(std::move(facts)); };
  const auto ref = schema.find("$ref");
  if (ref && ref->is_string()) {
    NIBBLE_ASSIGN(Term target, reference(ref->as_string(), path));
    target.negated = !target.negated;
    NIBBLE_ASSIGN(out, expand(target, depth + 1));
    if (legacy_) return out;
  }
  NIBBLE_RETURN_IF_ERROR(refuse_unsupported(schema, path));
  NIBBLE_ASSIGN(const Facts local, local_facts(schema, path));
  if (const auto name = schema.find("format"); name && name->is_string()) {
    const auto format = find_string_format(name->as_string());
    if (format && format->partly) return refuse("format");
  }
  if (local.types != kAllTypes) {
    Facts facts;
    facts.types = static_cast<JsonTypes>(kAllTypes & ~local.types);
    add(std::move(facts));
  }
  if (local.values) {
    NIBBLE_ASSIGN(const Alternatives others,
                  negative_values(local, path + (schema.find("enum") ? "/enum" : "/const"), depth));
    out.insert(out.end(), others.begin(), others.end());
  }
  const auto typed = [](JsonTypes types) {
    Facts facts;
    facts.types = types;
    return facts;
  };
  for (std::size_t i = 0; i < local.strings.size(); ++i) {
    Facts facts = typed(kString);
    facts.strings.push_back(languages_.except(local.strings[i]));
    if (plain_) facts.texts.push_back(languages_.except(local.texts[i]));
    add(std::move(facts));
  }
  if (local.least_length > 0) {
    Facts facts = typed(kString);
    facts.most_length = local.least_length - 1;
    add(std::move(facts));
  }
  if (local.most_length != kUnbounded) {
    Facts facts = typed(kString);
    facts.least_length = local.most_length + 1;
    add(std::move(facts));
  }
  for (NumberLimit limit : local.limits) {
    Facts facts = typed(kInteger | kFraction);
    limit.at_most = !limit.at_most;
    limit.or_equal = !limit.or_equal;
    facts.limits.push_back(std::move(limit));
    add(std::move(facts));
  }
  for (NumberFacts::Multiple multiple : local.multiples) {
    Facts facts = typed(kInteger | kFraction);
    multiple.not_of = true;
    facts.multiples.push_back(multiple);
    add(std::move(facts));
  }
  NIBBLE_ASSIGN(const Alternatives members, negative_members(local, path));
  out.insert(out.end(), members.begin(), members.end());
  if (local.least_members > 0) {
    Facts facts = typed(kObject);
    facts.most_members = local.least_members - 1;
    add(std::move(facts));
  }
  if (local.most_members != kUnbounded) {
    Facts facts = typed(kObject);
    facts.least_members = local.most_members + 1;
    add(std::move(facts));
  }
  for (const Facts::Elements& elements : local.elements) {
    const std::vector<Term>& first = elements.first;
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i] == kTrue) continue;
      Facts facts = typed(kArray);
      facts.elements.push_back({.first = std::vector<Term>(i, kTrue), .rest = kTrue});
      facts.elements.back().first.push_back({first[i].schema, !first[i].negated});
      facts.least_elements = static_cast<std::uint32_t>(i) + 1;
      add(std::move(facts));
    }
    if (elements.rest == kTrue) continue;
    Facts facts = typed(kArray);
    facts.contains.push_back({.term = {elements.rest.schema, !elements.rest.negated},
                              .path = path + "/items",
                              .from = static_cast<std::uint32_t>(first.size())});
    add(std::move(facts));
  }
  if (!local.unique_path.empty()) return refuse("uniqueItems");
  for (const Facts::Contains& contains : local.contains) {
    Facts facts = typed(kArray);
    if (contains.least > 0) {
      facts.contains = {contains};
      facts.contains.front().least = 0;
      facts.contains.front().most = contains.least - 1;
      add(facts);
    }
    if (contains.most != kUnbounded) {
      facts.contains = {contains};
      facts.contains.front().least = contains.most + 1;
      facts.contains.front().most = kUnbounded;
      add(std::move(facts));
    }
  }
  if (local.least_elements > 0) {
    Facts facts = typed(kArray);
    facts.most_elements = local.least_elements - 1;
    add(std::move(facts));
  }
  if (local.most_elements != kUnbounded) {
    Facts facts = typed(kArray);
    facts.least_elements = local.most_elements + 1;
    add(std::move(facts));
  }
  NIBBLE_ASSIGN(const Alternatives applied, negative_applicators(schema, path, depth));
  out.insert(out.end(), applied.begin(), applied.end());
  return out;
}

// The ways with what is known to hold beside them: all of it, or the types where there are several ways.
SchemaReader::Alternatives SchemaReader::within(const Alternatives& ways, const Alternatives& beside) {
  Facts known;
  if (beside.size() == 1) {
    known = beside.front();
  } else {
    known.types = 0;
    for (const Facts& each : beside) known.types |= each.types;
  }
  Alternatives out;
  for (const Facts& way : ways)
    if (auto both = merge(known, way)) out.push_back(std::move(*both));
  return out;
}

// Each branch without the values of those that it overlaps.
Result<SchemaReader::Alternatives> SchemaReader::one_of(const Terms& terms, const Alternatives& beside,
                                                        const std::string& path, int depth) {
  std::vector<Alternatives> branches, here;
  for (const Term term : terms) {
    NIBBLE_ASSIGN(Alternatives branch, expand(term, depth + 1));
    here.push_back(within(branch, beside));
    branches.push_back(std::move(branch));
  }
  Alternatives out;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    Alternatives mine = branches[i];
    for (std::size_t j = 0; j < branches.size(); ++j) {
      if (i == j) continue;
      NIBBLE_ASSIGN(const JsonTypes common, common_types(here[i], here[j]));
      if (common == 0) continue;
      const Result<Alternatives> others = expand({terms[j].schema, !terms[j].negated}, depth + 1);
      if (!others.ok())
        return invalid_argument(path + ": branches " + std::to_string(i) + " and " + std::to_string(j) +
                                " overlap, and " + others.status().message());
      Alternatives apart, overlapping;
      for (const Facts& way : mine) {
        apart.push_back(way);
        apart.back().types &= static_cast<JsonTypes>(~common);
        if (apart.back().types == 0) apart.pop_back();
        overlapping.push_back(way);
        overlapping.back().types &= common;
        if (overlapping.back().types == 0) overlapping.pop_back();
      }
      NIBBLE_ASSIGN(mine, both(std::move(overlapping), *others, path));
      mine.insert(mine.end(), apart.begin(), apart.end());
    }
    out.insert(out.end(), mine.begin(), mine.end());
  }
  return out;
}

Result<JsonTypes> SchemaReader::common_types(const Alternatives& a, const Alternatives& b) {
  JsonTypes all = 0;
  for (const Facts& x : a) {
    for (const Facts& y : b) {
      NIBBLE_RETURN_IF_ERROR(check_budget());
      NIBBLE_ASSIGN(const JsonTypes types, common_types(x, y, 0));
      all |= types;
    }
  }
  return all;
}

Result<JsonTypes> SchemaReader::common_types(const Facts& a, const Facts& b, int depth) {
  const std::optional<Facts> common = merge(a, b);
  if (!common) return JsonTypes{0};
  if (common->values) {
    JsonTypes types = 0;
    for (const JsonValue value : *common->values) {
      NIBBLE_ASSIGN(const bool fits, holds(value, *common));
      if (fits || partly_) types |= types_of(value);
    }
    return types;
  }
  JsonTypes left = common->types;
  if (left & (kInteger | kFraction)) {
    if (languages_.is_empty(numbers(languages_, number_facts(*common, left))))
      left &= static_cast<JsonTypes>(~(kInteger | kFraction));
  }
  if (left & kString && !partly_ && languages_.is_empty(string_inside(*common)))
    left &= static_cast<JsonTypes>(~kString);
  if (left & kObject && depth < 4) {
    for (const std::string_view name : common->required) {
      const Terms terms = terms_of(*common, name);
      if (std::binary_search(terms.begin(), terms.end(), kFalse)) {
        left &= static_cast<JsonTypes>(~kObject);
        break;
      }
      const Result<Alternatives> ways = alternatives(terms);
      // A member's schema that is being read itself, or is not supported, is taken as one that something
      // fits.
      if (!ways.ok()) continue;
      JsonTypes possible = 0;
      for (const Facts& way : *ways) {
        NIBBLE_ASSIGN(const JsonTypes types, common_types(way, way, depth + 1));
        possible |= types;
      }
      if (possible == 0) {
        left &= static_cast<JsonTypes>(~kObject);
        break;
      }
    }
  }
  return left;
}

Terms SchemaReader::terms_of(const Facts& facts, std::string_view member) {
  Terms out;
  std::optional<std::string> text;
  for (const Facts::Members& members : facts.members) {
    bool found = false;
    for (const auto& [name, term] : members.properties) {
      if (name != member) continue;
      found = true;
      if (term != kTrue) add_term(out, term);
    }
    for (const auto& [language, term] : members.patterns) {
      if (!text) text = json_inside(member);
      if (!accepts(language, *text)) continue;
      found = true;
      if (term != kTrue) add_term(out, term);
    }
    if (!found && members.additional != kTrue) add_term(out, members.additional);
  }
  return out;
}

}  // namespace nibble
