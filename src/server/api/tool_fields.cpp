#include "server/api/tool_fields.h"

#include <algorithm>
#include <set>

#include "base/quote.h"
#include "server/api/field_reader.h"

namespace nibble::api {
namespace {

constexpr std::size_t most_tools = 1024, most_name = 64;

bool is_function_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= most_name && std::all_of(name.begin(), name.end(), fits);
}

std::string place(const std::string& field, std::size_t number) {
  return field + "[" + std::to_string(number) + "]";
}

// The "function" of a tool, a choice or a call.
Refused find_function(const std::string& where, JsonValue value, JsonValue& function) {
  if (!value.is_object()) return bad_field(where, " must be an object");
  const auto type = value.find("type");
  if (!type || !type->is_string()) return bad_field(where + ".type", " must be a string");
  if (type->as_string() != "function") {
    return bad_field(where + ".type",
                     " " + quote(type->as_string()) +
                         " is not served: this server runs nothing itself, so tools are functions "
                         "of the client's");
  }
  const auto found = value.find("function");
  if (!found || !found->is_object()) return bad_field(where + ".function", " must be an object");
  function = *found;
  const auto name = function.find("name");
  if (!name || !name->is_string() || !is_function_name(name->as_string())) {
    return bad_field(where + ".function.name",
                     " must be 1 to 64 letters, digits, underscores, dots or hyphens");
  }
  return {};
}

}  // namespace

Refused read_tools(const std::string& field, JsonValue value, ToolUse& use) {
  if (!value.is_array()) return bad_field(field, " must be an array");
  if (value.size() > most_tools)
    return bad_field(field, " takes at most " + std::to_string(most_tools) + " tools");
  std::set<std::string, std::less<>> names;
  std::size_t number = 0;
  for (const JsonValue tool : value.elements()) {
    const std::string where = place(field, number++);
    JsonValue function = tool;
    if (Refused refused = find_function(where, tool, function)) return refused;
    const std::string name(function.find("name")->as_string());
    if (!names.insert(name).second)
      return bad_field(where + ".function.name", " " + quote(name) + " is there twice");
    for (const auto& [member, given] : function.members()) {
      const std::string at = where + ".function." + std::string(member);
      if (given.is_null()) continue;
      if (member == "description" && !given.is_string()) return bad_field(at, " must be a string");
      if (member == "parameters" && !given.is_object()) return bad_field(at, " must be an object");
      if (member == "strict" && !given.is_bool()) return bad_field(at, " must be true or false");
    }
  }
  if (number > 0) use.tools = value;
  return {};
}

Refused read_tool_choice(const std::string& field, JsonValue value, ToolUse& use) {
  const std::string_view choice = value.is_string() ? value.as_string() : std::string_view();
  if (choice == "auto" || choice == "none") {
    use.choice = choice == "auto" ? ToolUse::Choice::automatic : ToolUse::Choice::none;
    return {};
  }
  if (choice == "required" || value.is_object()) {
    return bad_field(field,
                     R"(: a call cannot be forced here; "auto" leaves it to the model, "none" forbids it)");
  }
  return bad_field(field, R"( must be "auto" or "none")");
}

Refused read_tool_calls(const std::string& field, JsonValue value, std::vector<ToolCall>& calls) {
  if (!value.is_array()) return bad_field(field, " must be an array");
  for (const JsonValue element : value.elements()) {
    const std::string where = place(field, calls.size());
    JsonValue function = element;
    if (Refused refused = find_function(where, element, function)) return refused;
    ToolCall call{.id = {}, .name = std::string(function.find("name")->as_string()), .arguments = {}};
    if (const auto id = element.find("id"); id && !id->is_null()) {
      if (Refused refused = read_text(where + ".id", *id, call.id)) return refused;
    }
    const auto arguments = function.find("arguments");
    if (!arguments || !arguments->is_string())
      return bad_field(where + ".function.arguments", " must be a string that holds JSON");
    call.arguments = arguments->as_string();
    calls.push_back(std::move(call));
  }
  return {};
}

}  // namespace nibble::api
