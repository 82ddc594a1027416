// What a client may ask an answer to look like, under the names that OpenAI, vLLM, SGLang and llama.cpp give
// it.
#include <utility>

#include "base/quote.h"
#include "server/api/unserved_rules.h"

namespace nibble::api {
namespace {

// Each may also be empty in whatever way.
constexpr FieldType grammar_text = other(R"({"anyOf":[{"type":"string"},{"enum":[[],{},false]}]})");

Refused ask(Reading& reading, TextFormat format) {
  TextFormat& asked = reading.request.format;
  if (asked.kind != TextFormat::Kind::text) {
    return bad_field(std::move(format.field),
                     " cannot be had beside " + asked.field + ": an answer has one format");
  }
  format.whitespace = asked.whitespace;
  asked = std::move(format);
  return {};
}

Refused ask_for_schema(Reading& reading, const std::string& field, JsonValue schema) {
  TextFormat format{.kind = TextFormat::Kind::json_schema, .field = field};
  if (schema.is_string()) {
    Result<JsonDocument> document = JsonDocument::parse(std::string(schema.as_string()));
    if (!document.ok()) return bad_field(field, ": " + document.status().message());
    format.text_schema = std::move(*document);
    schema = format.text_schema->root();
  }
  if (!schema.is_object() && !schema.is_bool()) return bad_field(field, " must be a JSON schema: an object");
  format.schema = schema;
  return ask(reading, std::move(format));
}

Refused ask_for_text(Reading& reading, TextFormat::Kind kind, const std::string& field, JsonValue value) {
  if (!value.is_string() || value.as_string().empty()) return bad_field(field, " must be a text");
  return ask(reading, {.kind = kind, .field = field, .pattern = std::string(value.as_string())});
}

Refused ask_for_choice(Reading& reading, const std::string& field, JsonValue value) {
  if (!value.is_array() || value.size() == 0) return bad_field(field, " must be an array of texts");
  TextFormat format{.kind = TextFormat::Kind::choice, .field = field};
  for (const JsonValue choice : value.elements()) {
    if (!choice.is_string() || choice.as_string().empty()) {
      return bad_field(field + "[" + std::to_string(format.choices.size()) + "]", " must be a text");
    }
    format.choices.emplace_back(choice.as_string());
  }
  return ask(reading, std::move(format));
}

// Clients of other servers send these fields empty where they want nothing.
Refused take_schema(Reading& reading, const std::string& field, const FieldValue& value) {
  if (asks_for_nothing(value.json)) return {};
  return ask_for_schema(reading, field, value.json);
}

template <TextFormat::Kind kind>
Refused take_text(Reading& reading, const std::string& field, const FieldValue& value) {
  if (asks_for_nothing(value.json)) return {};
  return ask_for_text(reading, kind, field, value.json);
}

Refused take_choice(Reading& reading, const std::string& field, const FieldValue& value) {
  if (asks_for_nothing(value.json)) return {};
  return ask_for_choice(reading, field, value.json);
}

// {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}, as OpenAI has it; llama.cpp's users
// put the schema beside the type.
Refused take_response_format(Reading& reading, const std::string& field, const FieldValue& value) {
  const auto type = value.json.find("type");
  if (!type || !type->is_string()) return bad_field(field + ".type", " must be a text");
  const std::string_view kind = type->as_string();
  if (kind == "text") return {};
  const auto beside = value.json.find("schema");
  if (kind == "json_object" && (!beside || beside->is_null()))
    return ask(reading, {.kind = TextFormat::Kind::json_object, .field = field});
  if (kind == "json_object") return ask_for_schema(reading, field + ".schema", *beside);
  if (kind != "json_schema") {
    return bad_field(field + ".type", " must be text, json_object or json_schema, not " + quote(kind));
  }
  const std::string where = field + ".json_schema";
  const auto wrapper = value.json.find("json_schema");
  if (!wrapper || !wrapper->is_object()) {
    if (beside) return ask_for_schema(reading, field + ".schema", *beside);
    return bad_field(where, " must be an object with a schema");
  }
  if (const auto strict = wrapper->find("strict"); strict && !strict->is_null() && !strict->is_bool())
    return bad_field(where + ".strict", " must be true or false");
  const auto schema = wrapper->find("schema");
  if (!schema) return bad_field(where + ".schema", " must be a JSON schema: an object");
  return ask_for_schema(reading, where + ".schema", *schema);
}

// vLLM's: one of its members says what is wanted.
Refused take_structured_outputs(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  bool compact = false;
  for (const auto& [name, member] : value.json.members()) {
    if (member.is_null() || (member.is_bool() && !member.as_bool() && name != "json")) continue;
    const std::string where = field + "." + std::string(name);
    Refused refused;
    if (name == "json") {
      refused = ask_for_schema(reading, where, member);
    } else if (name == "regex") {
      refused = ask_for_text(reading, TextFormat::Kind::regex, where, member);
    } else if (name == "choice") {
      refused = ask_for_choice(reading, where, member);
    } else if (name == "grammar") {
      refused = ask_for_text(reading, TextFormat::Kind::grammar, where, member);
    } else if (name == "json_object") {
      if (!member.is_bool()) return bad_field(where, " must be true or false");
      refused = ask(reading, {.kind = TextFormat::Kind::json_object, .field = where});
    } else if (name == "disable_any_whitespace") {
      if (!member.is_bool()) return bad_field(where, " must be true or false");
      compact = true;
    } else {
      return bad_field(where,
                       " is not served; json, json_object, regex, choice, grammar and "
                       "disable_any_whitespace are");
    }
    if (refused) return refused;
  }
  if (compact) reading.request.format.whitespace = JsonWhitespace::compact;
  return {};
}

constexpr Where both = Where::both;
constexpr FieldType schema_type =
    other(R"({"anyOf":[{"type":["object","boolean","string"]},{"enum":[[]]}]})");
constexpr FieldType choice_type =
    other(R"({"anyOf":[{"type":"array","items":{"type":"string","minLength":1}},{"enum":[{},"",false]}]})");
constexpr FieldType format_type = other(
    R"({"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object","json_schema"]}}})");
constexpr std::string_view schema_about = "The answer is JSON that this schema takes.";
constexpr std::string_view regex_about = "The whole answer matches this regular expression.";
constexpr std::string_view grammar_about =
    "The answer follows this grammar, in GBNF or in the manner of Lark.";

constexpr FieldRule rules[] = {
    {"ebnf", both, grammar_text, grammar_about, take_text<TextFormat::Kind::grammar>},
    {"grammar", both, grammar_text, grammar_about, take_text<TextFormat::Kind::grammar>},
    {"guided_choice", both, choice_type, "The answer is one of these texts.", take_choice},
    {"guided_grammar", both, grammar_text, grammar_about, take_text<TextFormat::Kind::grammar>},
    {"guided_json", both, schema_type, schema_about, take_schema},
    {"guided_regex", both, grammar_text, regex_about, take_text<TextFormat::Kind::regex>},
    {"json_schema", both, schema_type, schema_about, take_schema},
    {"regex", both, grammar_text, regex_about, take_text<TextFormat::Kind::regex>},
    {"response_format", both, format_type, "The answer is a text, any JSON object, or JSON of a schema.",
     take_response_format},
    {"structured_outputs", both, other(R"({"type":"object"})"),
     "One of json, json_object, regex, choice and grammar; disable_any_whitespace.", take_structured_outputs},
};

}  // namespace

std::span<const FieldRule> format_fields() { return rules; }

}  // namespace nibble::api
