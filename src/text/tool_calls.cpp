#include "text/tool_calls.h"

#include "base/json.h"
#include "base/json_copy.h"

namespace nibble {

std::optional<CallTokens> CallTokens::find(const Tokenizer& tokenizer) {
  const auto open = tokenizer.control_id("<tool_call>"), close = tokenizer.control_id("</tool_call>");
  if (!open || !close) return std::nullopt;
  return CallTokens{*open, *close};
}

std::optional<SpokenCall> read_call(std::string_view text) {
  const Result<JsonDocument> document = JsonDocument::parse(std::string(text));
  if (!document.ok() || !document->root().is_object()) return std::nullopt;
  const auto name = document->root().find("name"), arguments = document->root().find("arguments");
  if (!name || !name->is_string() || name->as_string().empty()) return std::nullopt;
  SpokenCall call{.name = std::string(name->as_string()), .arguments = "{}"};
  if (!arguments) return call;
  if (arguments->is_string()) {
    call.arguments = arguments->as_string();
  } else if (arguments->is_object()) {
    call.arguments.clear();
    JsonWriter json(call.arguments);
    copy_json(*arguments, json);
  } else {
    return std::nullopt;
  }
  return call;
}

}  // namespace nibble
