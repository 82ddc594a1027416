#include "app/tool_turn.h"

#include <utility>

#include "app/input_text.h"
#include "base/quote.h"
#include "server/api/tool_fields.h"

namespace nibble {

Result<JsonDocument> read_tools(const std::string& path, Console& console) {
  NIBBLE_ASSIGN(std::string text, read_input_text(path, console));
  Result<JsonDocument> document = JsonDocument::parse(std::move(text));
  if (!document.ok()) return invalid_argument(quote(path) + ": " + document.status().message());
  api::GenerationRequest request;
  api::Reading reading{.request = request};
  if (const api::Refused refused = api::take_tools(reading, "tools", {.json = document->root()}))
    return invalid_argument(quote(path) + ": " + refused->message);
  if (!request.tool_use.tools) return invalid_argument(quote(path) + " has no tools");
  return document;
}

void ToolTurn::begin(std::vector<ToolCall>& calls) {
  for (ToolCall& call : calls) {
    if (call.id.empty()) call.id = "call_" + std::to_string(++made_);
    waiting_.push_back(call);
  }
}

Message ToolTurn::take(std::string result) {
  ToolCall call = std::move(waiting_.front());
  waiting_.pop_front();
  Message message;
  message.role = Role::tool;
  message.content = std::move(result);
  message.name = std::move(call.name);
  message.tool_call_id = std::move(call.id);
  return message;
}

}  // namespace nibble
