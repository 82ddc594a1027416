// The values that fit none of a schema's keywords which speak of members, or of the value itself.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_copy.h"
#include "base/json_writer.h"
#include "grammar/characters.h"
#include "grammar/schema_facts.h"

namespace nibble {

namespace {

// A schema that the list or object alone fits.
std::string schema_of(JsonValue value) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  const auto is = [&](JsonValue part) {
    json.begin_object().key("const");
    copy_json(part, json);
    json.end_object();
  };
  if (value.is_array()) {
    json.member("type", std::string_view("array"))
        .member("minItems", value.size())
        .member("maxItems", value.size());
    json.key("prefixItems").begin_array();
    for (const JsonValue each : value.elements()) is(each);
    json.end_array();
  } else {
    json.member("type", std::string_view("object")).member("additionalProperties", false);
    json.key("required").begin_array();
    for (const auto [name, member] : value.members()) json.value(name);
    json.end_array().key("properties").begin_object();
    for (const auto [name, member] : value.members()) {
      json.key(name);
      is(member);
    }
    json.end_object();
  }
  json.end_object();
  return text;
}

}  // namespace

// The values that are none of the given ones.
Result<SchemaReader::Alternatives> SchemaReader::negative_values(const Facts& local, const std::string& path,
                                                                 int depth) {
  Alternatives out(1);
  int number = 0;
  for (const JsonValue value : *local.values) {
    // No pointer that a $ref may have leads to such a place.
    const std::string at = path + "~=" + std::to_string(number++);
    if (!value.is_array() && !value.is_object()) {
      for (Facts& way : out) way.excluded.push_back(value);
      continue;
    }
    NIBBLE_ASSIGN(JsonDocument made, JsonDocument::parse(schema_of(value)));
    const Term like = schema_at(made_.emplace_back(std::move(made)).root(), at);
    NIBBLE_ASSIGN(const Alternatives unlike, expand({like.schema, !like.negated}, depth + 1));
    NIBBLE_ASSIGN(out, both(std::move(out), unlike, at));
  }
  return out;
}

// The objects that lack a member, or have one that must not be there as it is.
Result<SchemaReader::Alternatives> SchemaReader::negative_members(const Facts& local,
                                                                  const std::string& path) {
  Alternatives out;
  const auto add = [&](Facts facts) {
    facts.types = kObject;
    out.push_back(std::move(facts));
  };
  const auto add_some = [&](Language names, Term term, std::string at) {
    Facts facts;
    facts.some_members.push_back({.names = names, .term = term, .path = std::move(at)});
    add(std::move(facts));
  };
  const auto is_required = [&](std::string_view name) {
    return std::ranges::find(local.required, name) != local.required.end();
  };
  // A required member that is lacking or not as it must be is one way: an optional one that is otherwise.
  for (const std::string_view name : local.required) {
    Facts facts;
    Term otherwise = kFalse;
    for (const Facts::Members& members : local.members)
      for (const auto& [declared, term] : members.properties)
        if (declared == name) otherwise = {term.schema, !term.negated};
    facts.members.push_back({.properties = {{name, otherwise}}, .patterns = {}, .additional = kTrue});
    add(std::move(facts));
  }
  for (const Facts::Members& members : local.members) {
    std::vector<Language> others{languages_.repeat(canonical_, 0, kUnbounded)};
    for (const auto& [name, term] : members.properties) {
      if (members.additional != kTrue) others.push_back(languages_.except(name_inside(name)));
      if (term == kTrue || is_required(name)) continue;
      Facts facts;
      facts.required.push_back(name);
      facts.members.push_back(
          {.properties = {{name, {term.schema, !term.negated}}}, .patterns = {}, .additional = kTrue});
      add(std::move(facts));
    }
    for (const auto& [names, term] : members.patterns) {
      others.push_back(languages_.except(names));
      if (term != kTrue) add_some(names, {term.schema, !term.negated}, path + "/patternProperties");
    }
    if (members.additional == kTrue) continue;
    add_some(languages_.all_of(others), {members.additional.schema, !members.additional.negated},
             path + "/additionalProperties");
  }
  for (const Term term : local.names) {
    NIBBLE_ASSIGN(const Language names, names_of({{term.schema, !term.negated}}));
    add_some(names, kTrue, path + "/propertyNames");
  }
  return out;
}

// The values that break a keyword which applies other schemas to the value itself.
Result<SchemaReader::Alternatives> SchemaReader::negative_applicators(JsonValue schema,
                                                                      const std::string& path, int depth) {
  Alternatives out;
  const auto add = [&out](const Alternatives& more) { out.insert(out.end(), more.begin(), more.end()); };
  for (const std::string_view keyword : {"allOf", "anyOf", "oneOf"}) {
    NIBBLE_ASSIGN(const Terms terms, listed(schema, keyword, path));
    if (terms.empty()) continue;
    const std::string at = path + "/" + std::string(keyword);
    Alternatives none(1);
    for (const Term term : terms) {
      NIBBLE_ASSIGN(const Alternatives branch, expand({term.schema, !term.negated}, depth + 1));
      if (keyword == "allOf") {
        add(branch);
      } else {
        NIBBLE_ASSIGN(none, both(std::move(none), branch, at));
      }
    }
    if (keyword != "allOf") add(none);
    if (keyword != "oneOf") continue;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        NIBBLE_ASSIGN(const Alternatives two, alternatives_of(terms[i], terms[j], depth));
        add(two);
      }
    }
  }
  if (const auto inner = schema.find("not")) {
    NIBBLE_ASSIGN(const Alternatives is, expand(schema_at(*inner, path + "/not"), depth + 1));
    add(is);
  }
  if (const auto condition = schema.find("if")) {
    const Term is = schema_at(*condition, path + "/if");
    for (const std::string_view name : {"then", "else"}) {
      const auto branch = schema.find(name);
      if (!branch) continue;
      const Term must = schema_at(*branch, path + "/" + std::string(name));
      NIBBLE_ASSIGN(const Alternatives broken, alternatives_of({is.schema, is.negated != (name == "else")},
                                                               {must.schema, !must.negated}, depth));
      add(broken);
    }
  }
  NIBBLE_ASSIGN(const Alternatives dependent, negative_dependents(schema, path, depth));
  add(dependent);
  return out;
}

// The objects that have a member and lack what it needs.
Result<SchemaReader::Alternatives> SchemaReader::negative_dependents(JsonValue schema,
                                                                     const std::string& path, int depth) {
  Alternatives out;
  for (const std::string_view keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const auto list = schema.find(keyword);
    if (!list) continue;
    const std::string at = path + "/" + std::string(keyword);
    if (!list->is_object()) return invalid_argument(at + ": must be an object");
    for (const auto [name, needs] : list->members()) {
      Facts has;
      has.types = kObject;
      has.required.push_back(name);
      if (needs.is_array()) {
        for (const JsonValue other : needs.elements()) {
          if (!other.is_string()) return invalid_argument(at + ": must list names");
          if (other.as_string() == name) continue;
          Facts lacks = has;
          lacks.members.push_back(
              {.properties = {{other.as_string(), kFalse}}, .patterns = {}, .additional = kTrue});
          out.push_back(std::move(lacks));
        }
        continue;
      }
      const Term must = schema_at(needs, at + "/" + std::string(name));
      NIBBLE_ASSIGN(const Alternatives breaks, expand({must.schema, !must.negated}, depth + 1));
      NIBBLE_ASSIGN(const Alternatives broken, both({has}, breaks, at));
      out.insert(out.end(), broken.begin(), broken.end());
    }
  }
  return out;
}

}  // namespace nibble
