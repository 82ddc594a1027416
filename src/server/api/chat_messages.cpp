#include "server/api/chat_messages.h"

#include "base/quote.h"
#include "server/api/tool_fields.h"

namespace nibble::api {
namespace {

// [{"type":"text","text":"..."}, ...], joined.
Refused read_parts(const std::string& field, JsonValue value, std::string& content) {
  int number = 0;
  for (const JsonValue part : value.elements()) {
    const std::string where = field + "[" + std::to_string(number++) + "]";
    const auto type = part.find("type");
    if (!type || !type->is_string()) return bad_field(where, " must be an object with a type");
    if (type->as_string() != "text" && type->as_string() != "refusal") {
      return bad_field(where + ".type",
                       " " + quote(type->as_string()) + " is not served: this model reads text alone");
    }
    const auto text = part.find(type->as_string());
    if (!text || !text->is_string()) return bad_field(where, " has no text");
    content += text->as_string();
  }
  return {};
}

Refused read_message(const std::string& where, JsonValue value, Message& message) {
  if (!value.is_object()) return bad_field(where, " must be an object");
  const auto role = value.find("role");
  if (!role || !role->is_string()) return bad_field(where + ".role", " must be a string");
  const std::optional<Role> known = parse_role(role->as_string());
  if (!known) return bad_field(where + ".role", " must be system, developer, user, assistant or tool");
  message.role = *known;
  for (const auto& [name, member] : value.members()) {
    const std::string field = where + "." + std::string(name);
    if (member.is_null()) continue;
    if (name == "content") {
      if (Refused refused = read_content(field, member, message.content)) return refused;
    } else if (name == "name") {
      if (Refused refused = read_text(field, member, message.name)) return refused;
    } else if (name == "reasoning_content" || name == "reasoning") {
      if (Refused refused = read_text(field, member, message.reasoning)) return refused;
    } else if (name == "tool_calls") {
      if (member.is_array() && member.size() == 0) continue;
      if (message.role != Role::assistant) return bad_field(field, " is for an assistant's messages");
      if (Refused refused = read_tool_calls(field, member, message.tool_calls)) return refused;
    } else if (name == "tool_call_id") {
      if (member.is_array() && member.size() == 0) continue;
      if (message.role != Role::tool) return bad_field(field, " is for a tool's messages");
      if (Refused refused = read_text(field, member, message.tool_call_id)) return refused;
    } else if (name == "function_call") {
      if (member.is_array() && member.size() == 0) continue;
      return bad_field(field, " is not served; use tool_calls");
    } else if (name == "audio") {
      return bad_field(field, " is not served: this model reads text alone");
    }
  }
  if (!message.content && message.role != Role::assistant)
    return bad_field(where + ".content", " must be a string or an array of text parts");
  if (message.role == Role::tool && message.tool_call_id.empty())
    return bad_field(where + ".tool_call_id", " must be the id of the call that this answers");
  return {};
}

}  // namespace

Refused read_content(const std::string& field, JsonValue value, std::optional<std::string>& content) {
  if (value.is_null()) return {};
  content.emplace();
  if (value.is_string()) {
    *content = value.as_string();
    return {};
  }
  if (value.is_array()) return read_parts(field, value, *content);
  return bad_field(field, " must be a string or an array of text parts");
}

Refused read_messages(JsonValue value, std::vector<Message>& messages) {
  if (!value.is_array() || value.size() == 0)
    return bad_field("messages", " must be an array of at least one message");
  messages.reserve(value.size());
  for (const JsonValue element : value.elements()) {
    Message message;
    if (Refused refused = read_message("messages[" + std::to_string(messages.size()) + "]", element, message))
      return refused;
    messages.push_back(std::move(message));
  }
  return {};
}

}  // namespace nibble::api
