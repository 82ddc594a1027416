#include "server/api/tool_forms.h"

#include "base/check.h"
#include "base/json_copy.h"
#include "base/quote.h"

namespace nibble::api {
namespace {

Refused read_tool(const std::string& where, JsonValue tool, const ToolForm& form, JsonWriter& json) {
  if (!tool.is_object()) return bad_field(where, " must be an object");
  const auto type = tool.find("type");
  const bool absent = !type || type->is_null();
  if (absent && !form.type_may_be_absent) return bad_field(where + ".type", " must be there");
  if (!absent && (!type->is_string() || type->as_string() != form.own_type)) {
    const std::string named = type->is_string() ? " " + quote(type->as_string()) : "";
    return bad_field(where + ".type", named + " is not served: nibble runs no tools; only those of type " +
                                          std::string(form.own_type) +
                                          ", which the client runs, can be offered");
  }
  const auto name = tool.find("name");
  if (!name || !name->is_string() || name->as_string().empty())
    return bad_field(where + ".name", " must be a string that is not empty");
  json.begin_object().member("type", "function").key("function").begin_object();
  json.member("name", name->as_string());
  if (const auto about = tool.find("description"); about && !about->is_null()) {
    if (!about->is_string()) return bad_field(where + ".description", " must be a string");
    json.member("description", about->as_string());
  }
  if (const auto schema = tool.find(form.schema); schema && !schema->is_null()) {
    if (!schema->is_object())
      return bad_field(where + "." + std::string(form.schema), " must be an object: a JSON schema");
    json.key("parameters");
    copy_json(*schema, json);
  }
  if (const auto strict = tool.find("strict"); strict && !strict->is_null()) {
    if (!strict->is_bool()) return bad_field(where + ".strict", " must be true or false");
    json.member("strict", strict->as_bool());
  }
  json.end_object().end_object();
  return {};
}

}  // namespace

Refused read_tools(const std::string& field, JsonValue value, const ToolForm& form, ToolUse& use) {
  if (!value.is_array()) return bad_field(field, " must be an array of tools");
  if (value.size() == 0) return {};
  std::string text;
  JsonWriter json(text);
  json.begin_array();
  int number = 0;
  for (const JsonValue tool : value.elements()) {
    if (Refused refused = read_tool(field + "[" + std::to_string(number++) + "]", tool, form, json))
      return refused;
  }
  json.end_array();
  Result<JsonDocument> document = JsonDocument::parse(std::move(text));
  NIBBLE_CHECK(document.ok(), "what was read is written within the same limits");
  use.own = *std::move(document);
  use.tools = use.own->root();
  return {};
}

}  // namespace nibble::api
