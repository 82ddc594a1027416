// Of the ways to satisfy a schema those that are needed: none that contradicts itself, and none whose values
// another one takes as well.
#include <algorithm>
#include <vector>

#include "grammar/schema_facts.h"

namespace nibble {
namespace {

// Of more ways each is not compared with each.
constexpr std::size_t kMostCompared = 400;

// Whether all that one says stands in the other.
template <class List, class Equal>
bool has_all(const List& all, const List& of, const Equal& equal) {
  return std::ranges::all_of(of, [&](const auto& wanted) {
    return std::ranges::any_of(all, [&](const auto& each) { return equal(each, wanted); });
  });
}
template <class List>
bool has_all(const List& all, const List& of) {
  return has_all(all, of, [](const auto& x, const auto& y) { return x == y; });
}

bool same_multiple(const NumberFacts::Multiple& x, const NumberFacts::Multiple& y) {
  return x.unit == y.unit && x.digits == y.digits && x.not_of == y.not_of;
}

bool same_limit(const NumberLimit& x, const NumberLimit& y) {
  return x.at_most == y.at_most && x.or_equal == y.or_equal && x.number == y.number;
}

bool strings_within(const Facts& a, const Facts& b) {
  return a.least_length >= b.least_length && a.most_length <= b.most_length &&
         has_all(a.strings, b.strings) && has_all(a.texts, b.texts);
}

bool numbers_within(const Facts& a, const Facts& b) {
  return has_all(a.limits, b.limits, same_limit) && has_all(a.multiples, b.multiples, same_multiple);
}

bool arrays_within(const Facts& a, const Facts& b) {
  return a.least_elements >= b.least_elements && a.most_elements <= b.most_elements &&
         (b.unique_path.empty() || !a.unique_path.empty()) && has_all(a.elements, b.elements) &&
         has_all(a.contains, b.contains, [](const Facts::Contains& x, const Facts::Contains& y) {
           return x.term == y.term && x.from == y.from && x.least >= y.least && x.most <= y.most;
         });
}

}  // namespace

bool SchemaReader::contradicts_itself(const Facts& facts) {
  const auto may_forbid = [](const Facts::Members& members) {
    const auto forbids = [](const auto& named) { return named.second == kFalse; };
    return members.additional == kFalse || std::ranges::any_of(members.properties, forbids) ||
           std::ranges::any_of(members.patterns, forbids);
  };
  const bool forbids = std::ranges::any_of(facts.members, may_forbid);
  if (!forbids && facts.members.size() < 2) return false;
  return std::ranges::any_of(facts.required, [&](std::string_view name) {
    const Terms terms = terms_of(facts, name);
    return std::ranges::binary_search(terms, kFalse) || no_given_value_fits(terms);
  });
}

// Told from the enums and consts among them alone.
bool SchemaReader::no_given_value_fits(const Terms& terms) {
  if (terms.size() < 2) return false;
  std::optional<std::vector<JsonValue>> left;
  const auto given_by = [&](Term term) -> std::optional<std::vector<JsonValue>> {
    const JsonValue schema = *schemas_[term.schema].value;
    // In old drafts nothing counts beside $ref.
    if (!schema.is_object() || schema.find("$ref")) return std::nullopt;
    if (const auto value = schema.find("const")) return std::vector{*value};
    const auto list = schema.find("enum");
    if (!list || !list->is_array()) return std::nullopt;
    std::vector<JsonValue> values;
    for (const JsonValue each : list->elements()) values.push_back(each);
    return values;
  };
  const auto is_among = [](JsonValue value, const std::vector<JsonValue>& values) {
    return std::ranges::any_of(values, [&](JsonValue each) { return equal(each, value); });
  };
  for (const Term term : terms) {
    if (term.negated || term == kTrue) continue;
    const auto given = given_by(term);
    if (!given) continue;
    if (!left) {
      left = given;
    } else {
      std::erase_if(*left, [&](JsonValue value) { return !is_among(value, *given); });
    }
  }
  if (!left) return false;
  for (const Term term : terms) {
    // What else the schema says might be what a value breaks.
    if (!term.negated || term == kFalse || schemas_[term.schema].value->size() > 1) continue;
    if (const auto given = given_by(term))
      std::erase_if(*left, [&](JsonValue value) { return is_among(value, *given); });
  }
  return left->empty();
}

bool SchemaReader::objects_within(const Facts& a, const Facts& b) {
  if (a.least_members < b.least_members || a.most_members > b.most_members) return false;
  if (!has_all(a.required, b.required) || !has_all(a.names, b.names)) return false;
  const auto has_some = [&](const Facts::SomeMember& wanted) {
    return std::ranges::any_of(a.some_members, [&](const Facts::SomeMember& each) {
      return each.names == wanted.names && (each.term == wanted.term || wanted.term == kTrue);
    });
  };
  if (!std::ranges::all_of(b.some_members, has_some)) return false;
  return std::ranges::all_of(b.members, [&](const Facts::Members& wanted) {
    if (std::ranges::find(a.members, wanted) != a.members.end()) return true;
    if (wanted.additional != kTrue || !wanted.patterns.empty()) return false;
    return std::ranges::all_of(wanted.properties, [&](const auto& named) {
      return named.second == kTrue || std::ranges::binary_search(terms_of(a, named.first), named.second);
    });
  });
}

// Whether all values of `a` are known to be among those of `b`.
bool SchemaReader::is_within(const Facts& a, const Facts& b) {
  const JsonTypes types = a.types;
  if (types & static_cast<JsonTypes>(~b.types)) return false;
  if (b.values && (!a.values || !has_all(*b.values, *a.values, equal))) return false;
  if (!has_all(a.excluded, b.excluded, equal)) return false;
  return (!(types & kString) || strings_within(a, b)) &&
         (!(types & (kInteger | kFraction)) || numbers_within(a, b)) &&
         (!(types & kArray) || arrays_within(a, b)) && (!(types & kObject) || objects_within(a, b));
}

// Of two that say the same the first stays.
void SchemaReader::drop_within(Alternatives& ways) {
  if (ways.size() < 2 || ways.size() > kMostCompared) return;
  std::vector<bool> dropped(ways.size());
  for (std::size_t i = ways.size(); i-- > 0;) {
    for (std::size_t j = 0; j < ways.size() && !dropped[i]; ++j)
      dropped[i] = i != j && !dropped[j] && is_within(ways[i], ways[j]);
  }
  std::size_t i = 0;
  std::erase_if(ways, [&](const Facts&) { return dropped[i++]; });
}

}  // namespace nibble
