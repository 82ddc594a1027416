// What the keywords of one schema say, each by itself, and where its $ref leads.
#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "base/utf8.h"
#include "grammar/formats.h"
#include "grammar/pattern.h"
#include "grammar/schema_facts.h"

namespace nibble {
namespace {

std::string pointer_part(std::string_view name) {
  std::string out = "/";
  for (const char c : name) out.append(c == '~' ? "~0" : c == '/' ? "~1" : std::string_view(&c, 1));
  return out;
}

Status must_be(const std::string& path, std::string_view keyword, std::string_view what) {
  return invalid_argument(path + "/" + std::string(keyword) + ": must be " + std::string(what));
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

void SchemaReader::find_identifiers(JsonValue value, const std::string& path, int depth) {
  if (depth > limits_.max_depth) return;
  if (value.is_object()) {
    for (const auto [name, member] : value.members()) {
      if (member.is_string()) {
        if (name == "$id" || name == "id") by_name_.try_emplace(std::string(member.as_string()), value, path);
        if (name == "$anchor") by_name_.try_emplace("#" + std::string(member.as_string()), value, path);
      }
      if (name == "enum" || name == "const") continue;
      if (member.is_object() || member.is_array())
        find_identifiers(member, path + pointer_part(name), depth + 1);
    }
  } else if (value.is_array()) {
    std::size_t i = 0;
    for (const JsonValue each : value.elements())
      find_identifiers(each, path + "/" + std::to_string(i++), depth + 1);
  }
}

Result<Term> SchemaReader::reference(std::string_view target, const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument(path + "/$ref: " + quote(target) + " " + std::string(why));
  };
  if (const auto named = by_name_.find(std::string(target)); named != by_name_.end())
    return schema_at(named->second.first, named->second.second);
  JsonValue at = document_;
  std::string where = "#";
  std::string_view fragment = target;
  const std::size_t hash = target.find('#');
  const std::string_view base = target.substr(0, hash);
  if (!base.empty()) {
    auto named = by_name_.find(std::string(base));
    if (named == by_name_.end()) named = by_name_.find(std::string(base) + "#");
    if (named == by_name_.end())
      return refuse("leads out of the schema; nothing is fetched: put it under $defs");
    at = named->second.first;
    where = named->second.second;
  }
  fragment = hash == std::string_view::npos ? std::string_view() : target.substr(hash + 1);
  const std::string decoded = percent_decoded(fragment);
  std::string_view rest = decoded;
  if (!rest.empty() && rest.front() != '/') return refuse("names an anchor that the schema does not have");
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::size_t end = std::min(rest.find('/'), rest.size());
    std::string name;
    for (std::size_t i = 0; i < end; ++i) {
      if (rest[i] == '~' && i + 1 < end) {
        name.push_back(rest[++i] == '0' ? '~' : '/');
      } else {
        name.push_back(rest[i]);
      }
    }
    rest.remove_prefix(end);
    std::optional<JsonValue> next;
    if (at.is_object()) {
      next = at.find(name);
    } else if (at.is_array()) {
      std::size_t i = 0;
      for (const JsonValue each : at.elements())
        if (std::to_string(i++) == name) next = each;
    }
    if (!next) return refuse("leads to no place in the schema");
    at = *next;
    where += pointer_part(name);
  }
  if (!at.is_object() && !at.is_bool()) return refuse("leads to a place that is no schema");
  return schema_at(at, where);
}

Status SchemaReader::refuse_unsupported(JsonValue schema, const std::string& path) {
  for (const std::string_view keyword :
       {"$dynamicRef", "$recursiveRef", "unevaluatedItems", "disallow", "extends", "divisibleBy"})
    if (schema.find(keyword))
      return invalid_argument(path + "/" + std::string(keyword) + ": is not supported");
  const auto left = schema.find("unevaluatedProperties");
  if (!left) return {};
  for (const std::string_view keyword : {"allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas", "not"})
    if (schema.find(keyword))
      return invalid_argument(path + "/unevaluatedProperties: is not supported beside " +
                              std::string(keyword));
  return {};
}

Result<std::uint32_t> SchemaReader::count(JsonValue value, const std::string& path,
                                          std::string_view keyword) const {
  const double number = value.is_number() ? value.as_double() : -1;
  if (number < 0 || number != std::floor(number)) return must_be(path, keyword, "a whole number, at least 0");
  return static_cast<std::uint32_t>(std::min(number, 4e9));
}

Result<Facts> SchemaReader::local_facts(JsonValue schema, const std::string& path) {
  Facts facts;
  NIBBLE_RETURN_IF_ERROR(type_facts(schema, path, facts));
  NIBBLE_RETURN_IF_ERROR(string_facts(schema, path, facts));
  NIBBLE_RETURN_IF_ERROR(number_facts_of(schema, path, facts));
  NIBBLE_RETURN_IF_ERROR(object_facts(schema, path, facts));
  NIBBLE_RETURN_IF_ERROR(array_facts(schema, path, facts));
  return facts;
}

Status SchemaReader::type_facts(JsonValue schema, const std::string& path, Facts& facts) {
  static constexpr std::pair<std::string_view, JsonTypes> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto one = [&](JsonValue name) -> Result<JsonTypes> {
    if (name.is_string())
      for (const auto& [known, types] : kNames)
        if (known == name.as_string()) return types;
    return invalid_argument(
        path + "/type: must be null, boolean, integer, number, string, array, object or a list of them");
  };
  if (const auto type = schema.find("type")) {
    facts.types = 0;
    if (type->is_array()) {
      for (const JsonValue each : type->elements()) {
        NIBBLE_ASSIGN(const JsonTypes types, one(each));
        facts.types |= types;
      }
    } else {
      NIBBLE_ASSIGN(facts.types, one(*type));
    }
  }
  if (const auto list = schema.find("enum")) {
    if (!list->is_array()) return must_be(path, "enum", "a list");
    facts.values.emplace();
    for (const JsonValue value : list->elements()) facts.values->push_back(value);
  }
  if (const auto value = schema.find("const")) {
    if (facts.values) {
      std::erase_if(*facts.values, [&](JsonValue each) { return !equal(each, *value); });
    } else {
      facts.values = {*value};
    }
  }
  return {};
}

Result<Language> SchemaReader::pattern(std::string_view pattern, TextForm form) {
  const std::string key = (form == TextForm::json ? 'j' : 'p') + std::string(pattern);
  if (const auto known = patterns_.find(key); known != patterns_.end()) return known->second;
  const PatternOptions options{.form = form, .search = true, .max_depth = limits_.max_depth};
  NIBBLE_ASSIGN(const Language made, compile_pattern(languages_, pattern, options));
  patterns_.emplace(key, made);
  return made;
}

Status SchemaReader::string_facts(JsonValue schema, const std::string& path, Facts& facts) {
  if (const auto length = schema.find("minLength")) {
    NIBBLE_ASSIGN(facts.least_length, count(*length, path, "minLength"));
  }
  if (const auto length = schema.find("maxLength")) {
    NIBBLE_ASSIGN(facts.most_length, count(*length, path, "maxLength"));
  }
  const auto add = [&](std::string_view pattern) -> Status {
    NIBBLE_ASSIGN(const Language language, this->pattern(pattern, TextForm::json));
    facts.strings.push_back(language);
    if (!plain_) return {};
    NIBBLE_ASSIGN(const Language text, this->pattern(pattern, TextForm::plain));
    facts.texts.push_back(text);
    return {};
  };
  if (const auto pattern = schema.find("pattern")) {
    if (!pattern->is_string()) return must_be(path, "pattern", "a string");
    const Status status = add(pattern->as_string());
    if (!status.ok()) return invalid_argument(path + "/pattern: " + status.message());
  }
  if (const auto name = schema.find("format"); name && name->is_string()) {
    const auto format = find_string_format(name->as_string());
    if (format && format->pattern.empty())
      return invalid_argument(path + "/format: " + quote(name->as_string()) + " is not supported");
    if (format) {
      partly_ |= format->partly;
      return add(format->pattern);
    }
  }
  return {};
}

Status SchemaReader::number_facts_of(JsonValue schema, const std::string& path, Facts& facts) {
  const auto limit = [&](std::string_view keyword, bool at_most, std::string_view exclusive) -> Status {
    const auto flag = schema.find(exclusive);
    const auto add = [&](JsonValue number, bool or_equal, std::string_view name) -> Status {
      if (!number.is_number()) return must_be(path, name, "a number");
      facts.limits.push_back({decimal_of(number), at_most, or_equal});
      return {};
    };
    // In draft 4 the exclusive keyword is a switch beside the other.
    const bool switched = flag && flag->is_bool();
    if (const auto number = schema.find(keyword))
      NIBBLE_RETURN_IF_ERROR(add(*number, !(switched && flag->as_bool()), keyword));
    if (flag && !switched) NIBBLE_RETURN_IF_ERROR(add(*flag, false, exclusive));
    return {};
  };
  NIBBLE_RETURN_IF_ERROR(limit("minimum", false, "exclusiveMinimum"));
  NIBBLE_RETURN_IF_ERROR(limit("maximum", true, "exclusiveMaximum"));
  if (const auto unit = schema.find("multipleOf")) {
    if (!unit->is_number() || unit->as_double() <= 0) return must_be(path, "multipleOf", "a number above 0");
    const auto multiple = multiple_of(*unit);
    if (!multiple) return invalid_argument(path + "/multipleOf: has too many digits to be supported");
    facts.multiples.push_back(*multiple);
  }
  return {};
}

Status SchemaReader::object_facts(JsonValue schema, const std::string& path, Facts& facts) {
  if (const auto names = schema.find("required")) {
    if (!names->is_array()) return must_be(path, "required", "a list of names");
    for (const JsonValue name : names->elements()) {
      if (!name.is_string()) return must_be(path, "required", "a list of names");
      facts.required.push_back(name.as_string());
    }
    std::vector<std::string_view> distinct;
    for (const std::string_view name : facts.required)
      if (std::find(distinct.begin(), distinct.end(), name) == distinct.end()) distinct.push_back(name);
    facts.required = std::move(distinct);
  }
  if (const auto least = schema.find("minProperties")) {
    NIBBLE_ASSIGN(facts.least_members, count(*least, path, "minProperties"));
  }
  if (const auto most = schema.find("maxProperties")) {
    NIBBLE_ASSIGN(facts.most_members, count(*most, path, "maxProperties"));
  }
  if (const auto names = schema.find("propertyNames")) {
    const Term term = schema_at(*names, path + "/propertyNames");
    if (term != kTrue) facts.names.push_back(term);
  }
  const auto properties = schema.find("properties");
  const auto patterns = schema.find("patternProperties");
  auto additional = schema.find("additionalProperties");
  std::string_view additional_name = "additionalProperties";
  if (!additional) {
    additional = schema.find("unevaluatedProperties");
    additional_name = "unevaluatedProperties";
  }
  if (!properties && !patterns && !additional) return {};
  Facts::Members members{.properties = {}, .patterns = {}, .additional = kTrue};
  if (properties) {
    if (!properties->is_object()) return must_be(path, "properties", "an object");
    for (const auto [name, value] : properties->members())
      members.properties.emplace_back(name, schema_at(value, path + "/properties" + pointer_part(name)));
  }
  if (patterns) {
    if (!patterns->is_object()) return must_be(path, "patternProperties", "an object");
    for (const auto [pattern, value] : patterns->members()) {
      const std::string at = path + "/patternProperties" + pointer_part(pattern);
      const Result<Language> language = this->pattern(pattern, TextForm::json);
      if (!language.ok()) return invalid_argument(at + ": " + language.status().message());
      members.patterns.emplace_back(*language, schema_at(value, at));
    }
  }
  if (additional) members.additional = schema_at(*additional, path + "/" + std::string(additional_name));
  facts.members.push_back(std::move(members));
  return {};
}

Status SchemaReader::array_facts(JsonValue schema, const std::string& path, Facts& facts) {
  if (const auto least = schema.find("minItems")) {
    NIBBLE_ASSIGN(facts.least_elements, count(*least, path, "minItems"));
  }
  if (const auto most = schema.find("maxItems")) {
    NIBBLE_ASSIGN(facts.most_elements, count(*most, path, "maxItems"));
  }
  if (const auto unique = schema.find("uniqueItems"); unique && unique->is_bool() && unique->as_bool())
    facts.unique_path = path + "/uniqueItems";
  if (const auto contains = schema.find("contains")) {
    Facts::Contains counted{.term = schema_at(*contains, path + "/contains"), .path = path + "/contains"};
    if (const auto least = schema.find("minContains")) {
      NIBBLE_ASSIGN(counted.least, count(*least, path, "minContains"));
    }
    if (const auto most = schema.find("maxContains")) {
      NIBBLE_ASSIGN(counted.most, count(*most, path, "maxContains"));
    }
    if (counted.least > 0 || counted.most != kUnbounded) facts.contains.push_back(std::move(counted));
  }
  Facts::Elements elements{.first = {}, .rest = kTrue};
  auto first = schema.find("prefixItems");
  std::string_view first_name = "prefixItems";
  auto rest = schema.find("items");
  std::string_view rest_name = "items";
  if (rest && rest->is_array()) {
    // Before 2020-12 a list of items was what prefixItems is, and additionalItems what items is.
    first = rest;
    first_name = "items";
    rest = schema.find("additionalItems");
    rest_name = "additionalItems";
  }
  if (!first && !rest) return {};
  if (first) {
    if (!first->is_array()) return must_be(path, first_name, "a list of schemas");
    for (const JsonValue each : first->elements())
      elements.first.push_back(schema_at(
          each, path + "/" + std::string(first_name) + "/" + std::to_string(elements.first.size())));
  }
  if (rest) elements.rest = schema_at(*rest, path + "/" + std::string(rest_name));
  facts.elements.push_back(std::move(elements));
  return {};
}

}  // namespace nibble
