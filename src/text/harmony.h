// Harmony, the chat format of gpt-oss, rendered natively as OpenAI's own library (openai-harmony) does it:
//   <|start|>{role}[:{name}][ to={recipient}][<|channel|>{channel}][
//   <|constrain|>{type}]<|message|>{content}<|end|>
// with <|call|> in place of <|end|> after an assistant's message to a tool. Only the markers are trusted
// text; names, contents and tool descriptions never become control tokens.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/conversation.h"

namespace nibble {

struct HarmonyMessage {
  Role role = Role::user;
  std::string name;          // of a tool the whole author: "functions.get_weather"
  std::string recipient;     // empty: everybody
  std::string channel;       // analysis, commentary, final; empty: none
  std::string content_type;  // "json"; empty: none
  bool constrained = false;  // <|constrain|> stands before the content type
  std::string content;
};

// What the system message tells the model about itself.
struct HarmonySystem {
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string current_date;                 // "2025-08-05"; empty: not said
  std::string reasoning_effort = "medium";  // low, medium or high
};

std::string harmony_system_text(const HarmonySystem& system, bool has_function_tools);
// `tools` is the API's array; absent or empty: no tools. A tool without a name is refused.
Result<std::string> harmony_developer_text(const std::optional<std::string>& instructions,
                                           const std::optional<JsonValue>& tools);
// A JSON schema as the TypeScript type that gpt-oss was trained on.
std::string harmony_typescript(const JsonValue& schema, const std::string& indent = {});

struct HarmonyRenderOptions {
  bool add_generation_prompt = true;
  // As openai-harmony: once an assistant's last message is a final one, the analysis before the first final
  // message is left out.
  bool drop_analysis = true;
};
RenderedPrompt render_harmony(std::span<const HarmonyMessage> messages,
                              const HarmonyRenderOptions& options = {});

// An API conversation as harmony messages: a system message from `system`, then one developer message with
// the leading system and developer messages as instructions and the request's tools. Reasoning of turns that
// ended in a final answer is left out, as the format asks. The request's reasoning_effort wins over that of
// `system`.
Result<std::vector<HarmonyMessage>> harmony_conversation(const ChatRequest& request, HarmonySystem system);

}  // namespace nibble
