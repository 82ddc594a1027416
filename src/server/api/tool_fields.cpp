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

Refused check_tool(const std::string& where, JsonValue tool, ToolUse& use) {
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
  return check_function(where + ".function", *function, "parameters", use);
}

}  // namespace

Refused check_function(const std::string& where, JsonValue function, std::string_view schema, ToolUse& use) {
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
  if (strict->as_bool()) use.strict.emplace_back(name->as_string());
  return {};
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
    if (Refused refused =
            check_tool(field + "[" + std::to_string(number++) + "]", tool, reading.request.tool_use))
      return refused;
  }
  if (json.size() > 0) reading.request.tool_use.tools = json;
  return {};
}

namespace {

// The name of the function that a choice names; `member` as read_allowed_tools has it.
Refused read_named(const std::string& field, JsonValue tool, std::string_view member, ToolUse& use) {
  const auto type = tool.is_object() ? tool.find("type") : std::nullopt;
  if (!type || !type->is_string() || type->as_string() != "function")
    return bad_field(field + ".type", " must be \"function\"");
  std::optional<JsonValue> holder = tool;
  if (!member.empty()) holder = tool.find(member);
  const std::string where = member.empty() ? field : field + "." + std::string(member);
  const auto name = holder && holder->is_object() ? holder->find("name") : std::nullopt;
  if (!name || !name->is_string()) return bad_field(where + ".name", " must be a string");
  use.allowed.emplace_back(name->as_string());
  return {};
}

}  // namespace

Refused read_allowed_tools(const std::string& field, JsonValue value, std::string_view name_at,
                           ToolUse& use) {
  const auto mode = value.is_object() ? value.find("mode") : std::nullopt;
  const std::string_view word = mode && mode->is_string() ? mode->as_string() : "";
  if (word != "auto" && word != "required") return bad_field(field + ".mode", " must be auto or required");
  const auto tools = value.find("tools");
  if (!tools || !tools->is_array() || tools->size() == 0 || tools->size() > most_tools)
    return bad_field(field + ".tools", " must be an array of at least one tool");
  int number = 0;
  for (const JsonValue tool : tools->elements()) {
    const std::string where = field + ".tools[" + std::to_string(number++) + "]";
    if (Refused refused = read_named(where, tool, name_at, use)) return refused;
  }
  use.choice = word == "auto" ? ToolUse::Choice::automatic : ToolUse::Choice::required;
  return {};
}

Refused take_tool_choice(Reading& reading, const std::string& field, const FieldValue& value) {
  using Choice = ToolUse::Choice;
  ToolUse& use = reading.request.tool_use;
  const std::string_view word = value.json.is_string() ? value.json.as_string() : "";
  const auto type = value.json.is_object() ? value.json.find("type") : std::nullopt;
  if (word == "auto" || word == "none" || word == "required") {
    use.choice = word == "auto" ? Choice::automatic : word == "none" ? Choice::none : Choice::required;
    return {};
  }
  if (type && type->is_string() && type->as_string() == "allowed_tools") {
    const std::string where = field + ".allowed_tools";
    const auto allowed = value.json.find("allowed_tools");
    if (!allowed) return bad_field(where, " must be there");
    return read_allowed_tools(where, *allowed, "function", use);
  }
  if (type && type->is_string() && type->as_string() == "function") {
    use.choice = Choice::named;
    return read_named(field, value.json, "function", use);
  }
  if (type && type->is_string()) {
    return bad_field(field + ".type",
                     " " + quote(type->as_string()) + " is not served: function and allowed_tools are");
  }
  return bad_field(field, R"( must be auto, none, required, {"type":"function","function":{"name":...}} or )"
                          R"({"type":"allowed_tools",...})");
}

Refused check_tool_choice(const GenerationRequest& request) {
  const ToolUse& use = request.tool_use;
  const bool forced = use.choice == ToolUse::Choice::required || use.choice == ToolUse::Choice::named;
  if (!use.tools && (forced || !use.allowed.empty()))
    return bad_field("tool_choice", " is about calls and there are no tools; offer some in tools");
  const auto is_offered = [&](const std::string& name) {
    for (const JsonValue tool : use.tools->elements())
      if (tool.find("function")->find("name")->as_string() == name) return true;
    return false;
  };
  for (const std::string& name : use.allowed)
    if (!is_offered(name))
      return bad_field("tool_choice", ": " + quote(name) + " is the name of no tool in tools");
  if (forced && request.sampling.ignore_eos)
    return bad_field("ignore_eos", " cannot be had beside tool_choice, which says where the answer ends");
  return {};
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
