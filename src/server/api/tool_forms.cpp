#include "server/api/tool_forms.h"

#include "base/check.h"
#include "base/json_copy.h"
#include "base/quote.h"
#include "server/api/tool_fields.h"

namespace nibble::api {
namespace {

Refused read_tool(const std::string& where, JsonValue tool, const ToolForm& form, ToolUse& use,
                  JsonWriter& json) {
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
  if (Refused refused = check_function(where, tool, form.schema, use)) return refused;
  json.begin_object().member("type", "function").key("function").begin_object();
  json.member("name", tool.find("name")->as_string());
  if (const auto about = tool.find("description"); about && !about->is_null())
    json.member("description", about->as_string());
  if (const auto schema = tool.find(form.schema); schema && !schema->is_null()) {
    json.key("parameters");
    copy_json(*schema, json);
  }
  json.end_object().end_object();
  return {};
}

}  // namespace

Refused read_tools(const std::string& field, JsonValue value, const ToolForm& form, ToolUse& use) {
  if (!value.is_array()) return bad_field(field, " must be an array of tools");
  if (value.size() == 0) return {};
  if (value.size() > most_tools)
    return bad_field(field, " takes at most " + std::to_string(most_tools) + " tools");
  std::string text;
  JsonWriter json(text);
  json.begin_array();
  int number = 0;
  for (const JsonValue tool : value.elements()) {
    if (Refused refused = read_tool(field + "[" + std::to_string(number++) + "]", tool, form, use, json))
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
