#include "server/api/tool_fields.h"

#include "base/json_copy.h"
#include "base/quote.h"

namespace nibble::api {
namespace {

constexpr std::size_t longest_name = 128;
constexpr std::string_view name_wanted = " must be 1 to 128 letters, digits, _, . or -";

bool is_name(std::string_view name) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  return !name.empty() && name.size() <= longest_name &&
         name.find_first_not_of(letters) == std::string_view::npos;
}

Refused check_tool(const std::string& where, JsonValue tool) {
  if (!tool.is_object()) return bad_field(where, " must be an object");
  const auto type = tool.find("type");
  if (!type || !type->is_string()) return bad_field(where + ".type", " must be \"function\"");
  if (type->as_string() != "function") {
    return bad_field(where + ".type", " " + quote(type->as_string()) +
                                          " is not served: this server runs no tools; offer functions, "
                                          "which the client runs");
  }
  const auto function = tool.find("function");
  if (!function || !function->is_object()) return bad_field(where + ".function", " must be an object");
  return check_function(where + ".function", *function, "parameters");
}

}  // namespace

Refused check_function(const std::string& where, JsonValue function, std::string_view schema) {
  const auto name = function.find("name");
  if (!name || !name->is_string() || !is_name(name->as_string()))
    return bad_field(where + ".name", name_wanted);
  const auto description = function.find("description");
  if (description && !description->is_null() && !description->is_string())
    return bad_field(where + ".description", " must be a string");
  const auto parameters = function.find(schema);
  if (parameters && !parameters->is_null() && !parameters->is_object())
    return bad_field(where + "." + std::string(schema), " must be a JSON schema, which is an object");
  const auto strict = function.find("strict");
  if (!strict || strict->is_null()) return {};
  if (!strict->is_bool()) return bad_field(where + ".strict", " must be true or false");
  if (!strict->as_bool()) return {};
  return bad_field(where + ".strict", " is not served yet: arguments are as the model writes them");
}

Refused take_tools(Reading& reading, const std::string& field, const FieldValue& value) {
  const JsonValue json = value.json;
  const bool nothing = (json.is_object() && json.size() == 0) ||
                       (json.is_string() && json.as_string().empty()) || (json.is_bool() && !json.as_bool());
  if (nothing) return {};
  if (!json.is_array()) return bad_field(field, " must be an array of functions");
  if (json.size() > most_tools)
    return bad_field(field, " takes at most " + std::to_string(most_tools) + " functions");
  int number = 0;
  for (const JsonValue tool : json.elements()) {
    if (Refused refused = check_tool(field + "[" + std::to_string(number++) + "]", tool)) return refused;
  }
  if (json.size() > 0) reading.request.tool_use.tools = json;
  return {};
}

Refused take_tool_choice(Reading& reading, const std::string& field, const FieldValue& value) {
  using Choice = ToolUse::Choice;
  if (value.json.is_string()) {
    const std::string_view choice = value.json.as_string();
    if (choice == "auto" || choice == "none") {
      reading.request.tool_use.choice = choice == "none" ? Choice::none : Choice::automatic;
      return {};
    }
    if (choice != "required") return bad_field(field, " must be auto or none");
  } else if (!value.json.is_object()) {
    return bad_field(field, " must be auto or none");
  }
  return bad_field(field, " cannot force a call yet: use auto, or none");
}

Refused take_parallel_tool_calls(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.tool_use.parallel = value.boolean;
  return {};
}

Refused read_tool_calls(const std::string& field, JsonValue value, std::vector<ToolCall>& calls) {
  if (!value.is_array()) return bad_field(field, " must be an array of calls");
  for (const JsonValue element : value.elements()) {
    const std::string where = field + "[" + std::to_string(calls.size()) + "]";
    if (!element.is_object()) return bad_field(where, " must be an object");
    const auto type = element.find("type");
    if (type && !type->is_null() && (!type->is_string() || type->as_string() != "function"))
      return bad_field(where + ".type", " must be \"function\"");
    ToolCall call;
    if (const auto id = element.find("id"); id && !id->is_null()) {
      if (Refused refused = read_text(where + ".id", *id, call.id)) return refused;
    }
    const auto function = element.find("function");
    if (!function || !function->is_object()) return bad_field(where + ".function", " must be an object");
    const auto name = function->find("name");
    if (!name || !name->is_string() || !is_name(name->as_string()))
      return bad_field(where + ".function.name", name_wanted);
    call.name = name->as_string();
    const auto arguments = function->find("arguments");
    if (arguments && arguments->is_string()) {
      call.arguments = arguments->as_string();
    } else if (arguments && arguments->is_object()) {
      JsonWriter json(call.arguments);
      copy_json(*arguments, json);
    } else if (arguments && !arguments->is_null()) {
      return bad_field(where + ".function.arguments", " must be the text of a JSON object");
    }
    if (call.arguments.empty()) call.arguments = "{}";
    calls.push_back(std::move(call));
  }
  return {};
}

}  // namespace nibble::api
