// Whether a given value fits facts: for enum, const and members whose names are given.
#include <algorithm>
#include <cmath>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/schema_facts.h"

namespace nibble {

std::string json_inside(std::string_view text) {
  std::string out;
  JsonWriter(out).value(text);
  return out.substr(1, out.size() - 2);
}

JsonTypes types_of(JsonValue value) {
  switch (value.type()) {
    case JsonType::null: return kNull;
    case JsonType::boolean: return kBoolean;
    case JsonType::integer:
    case JsonType::real: return kInteger | kFraction;
    case JsonType::string: return kString;
    case JsonType::array: return kArray;
    case JsonType::object: return kObject;
  }
  return kAllTypes;
}

bool SchemaReader::equal(JsonValue a, JsonValue b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.type() != b.type() || a.size() != b.size()) return false;
  switch (a.type()) {
    case JsonType::boolean: return a.as_bool() == b.as_bool();
    case JsonType::string: return a.as_string() == b.as_string();
    case JsonType::array: {
      auto other = b.elements().begin();
      for (const JsonValue each : a.elements()) {
        if (!equal(each, *other)) return false;
        ++other;
      }
      return true;
    }
    case JsonType::object:
      for (const auto [name, value] : a.members()) {
        const auto other = b.find(name);
        if (!other || !equal(value, *other)) return false;
      }
      return true;
    default: return true;
  }
}

Language SchemaReader::name_inside(std::string_view name) {
  const auto [at, added] = names_.try_emplace(std::string(name), kNothing);
  if (added) at->second = text_of(languages_, name, TextForm::json);
  return at->second;
}

bool SchemaReader::accepts(Language language, std::string_view text) {
  for (const char byte : text) {
    language = languages_.derivative(language, static_cast<std::uint8_t>(byte));
    if (language == kNothing) return false;
  }
  return languages_.has_empty_text(language);
}

Language SchemaReader::string_inside(const Facts& facts) {
  if (facts.least_length > facts.most_length) return kNothing;
  std::vector<Language> excluded;
  for (const JsonValue value : facts.excluded)
    if (value.is_string()) excluded.push_back(text_of(languages_, value.as_string(), TextForm::json));
  const bool free = facts.strings.empty() && excluded.empty();
  const Language all =
      languages_.repeat(free ? any_character_ : canonical_, facts.least_length, facts.most_length);
  if (free) return all;
  std::vector<Language> parts = facts.strings;
  // A pattern's texts are of these characters already.
  if (parts.empty() || facts.least_length > 0 || facts.most_length != kUnbounded ||
      std::any_of(parts.begin(), parts.end(), [&](Language part) { return languages_.is_complement(part); }))
    parts.push_back(all);
  if (!excluded.empty()) parts.push_back(languages_.except(languages_.any_of(excluded)));
  return languages_.all_of(parts);
}

Language SchemaReader::plain_string(const Facts& facts) {
  if (facts.least_length > facts.most_length) return kNothing;
  std::vector<Language> parts = facts.texts;
  parts.push_back(languages_.repeat(characters(languages_, CharacterSet::all(), TextForm::plain),
                                    facts.least_length, facts.most_length));
  for (const JsonValue value : facts.excluded)
    if (value.is_string()) parts.push_back(languages_.except(languages_.literal(value.as_string())));
  return languages_.all_of(parts);
}

NumberFacts SchemaReader::number_facts(const Facts& facts, JsonTypes types) const {
  return {.integers = (types & kInteger) != 0,
          .fractions = (types & kFraction) != 0,
          .limits = facts.limits,
          .multiples = facts.multiples};
}

Result<bool> SchemaReader::holds(JsonValue value, const Terms& terms) {
  NIBBLE_ASSIGN(const std::vector<Facts> ways, alternatives(terms));
  for (const Facts& way : ways) {
    NIBBLE_ASSIGN(const bool fits, holds(value, way));
    if (fits) return true;
  }
  return false;
}

namespace {

bool has_equal_elements(JsonValue list) {
  std::vector<JsonValue> before;
  for (const JsonValue each : list.elements()) {
    if (std::any_of(before.begin(), before.end(),
                    [&](JsonValue one) { return SchemaReader::equal(one, each); }))
      return true;
    before.push_back(each);
  }
  return false;
}

}  // namespace

Result<bool> SchemaReader::holds(JsonValue value, const Facts& facts) {
  const auto is_value = [&](JsonValue other) { return equal(value, other); };
  if (facts.values && std::none_of(facts.values->begin(), facts.values->end(), is_value)) return false;
  if (std::any_of(facts.excluded.begin(), facts.excluded.end(), is_value)) return false;
  switch (value.type()) {
    case JsonType::null: return (facts.types & kNull) != 0;
    case JsonType::boolean: return (facts.types & kBoolean) != 0;
    case JsonType::integer:
    case JsonType::real: {
      const double number = value.as_double();
      const JsonTypes type = number == std::floor(number) ? kInteger : kFraction;
      if (!(facts.types & type)) return false;
      return accepts(numbers(languages_, number_facts(facts, type)), decimal_of(value));
    }
    case JsonType::string: {
      if (!(facts.types & kString)) return false;
      Facts one = facts;
      one.excluded.clear();
      return accepts(string_inside(one), json_inside(value.as_string()));
    }
    case JsonType::array: {
      if (!(facts.types & kArray)) return false;
      if (!facts.unique_path.empty() && has_equal_elements(value)) return false;
      for (const Facts::Contains& contains : facts.contains) {
        std::uint32_t found = 0, place = 0;
        for (const JsonValue each : value.elements()) {
          if (place++ < contains.from) continue;
          NIBBLE_ASSIGN(const bool fits, holds(each, Terms{contains.term}));
          found += fits;
          if (fits || contains.most == kUnbounded) continue;
          // What does not fit as far as is known must be known not to.
          NIBBLE_ASSIGN(const bool misfits,
                        holds(each, Terms{{contains.term.schema, !contains.term.negated}}));
          if (!misfits) return false;
        }
        if (found < contains.least || found > contains.most) return false;
      }
      if (value.size() < facts.least_elements || value.size() > facts.most_elements) return false;
      std::size_t i = 0;
      for (const JsonValue each : value.elements()) {
        for (const Facts::Elements& elements : facts.elements) {
          NIBBLE_ASSIGN(const bool fits,
                        holds(each, Terms{i < elements.first.size() ? elements.first[i] : elements.rest}));
          if (!fits) return false;
        }
        ++i;
      }
      return true;
    }
    case JsonType::object: {
      if (!(facts.types & kObject)) return false;
      if (value.size() < facts.least_members || value.size() > facts.most_members) return false;
      for (const std::string_view name : facts.required)
        if (!value.find(name)) return false;
      for (const Facts::SomeMember& some : facts.some_members) {
        bool found = false;
        for (const auto [name, member] : value.members()) {
          if (found || !accepts(some.names, json_inside(name))) continue;
          NIBBLE_ASSIGN(found, holds(member, Terms{some.term}));
        }
        if (!found) return false;
      }
      for (const auto [name, member] : value.members()) {
        NIBBLE_ASSIGN(const bool named, name_fits(name, facts));
        if (!named) return false;
        NIBBLE_ASSIGN(const bool fits, holds(member, terms_of(facts, name)));
        if (!fits) return false;
      }
      return true;
    }
  }
  return false;
}

Result<Language> SchemaReader::names_of(const Terms& terms) {
  NIBBLE_ASSIGN(const std::vector<Facts> ways, alternatives(terms));
  std::vector<Language> texts;
  for (const Facts& way : ways) {
    if (!(way.types & kString)) continue;
    if (way.values) {
      for (const JsonValue each : *way.values) {
        NIBBLE_ASSIGN(const bool fits, holds(each, way));
        if (fits && each.is_string()) texts.push_back(name_inside(each.as_string()));
      }
    } else {
      texts.push_back(string_inside(way));
    }
  }
  return languages_.any_of(texts);
}

Result<bool> SchemaReader::name_fits(std::string_view name, const Facts& facts) {
  if (facts.names.empty()) return true;
  std::string text;
  JsonWriter(text).value(name);
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(std::move(text)));
  return holds(document.root(), facts.names);
}

}  // namespace nibble
