// A chat as a client sends it: plain structs that the renderers (Jinja template, harmony) read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace nibble {

enum class Role : std::uint8_t { system, developer, user, assistant, tool };

std::string_view role_name(Role role);
std::optional<Role> parse_role(std::string_view name);

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as the client wrote them; a JSON object's text if the client is well-behaved
};

struct Message {
  Role role = Role::user;
  std::optional<std::string> content;  // absent: the client sent null or nothing
  std::string name;                    // empty: none
  std::string reasoning;               // of an assistant; empty: none
  std::vector<ToolCall> tool_calls;    // of an assistant
  std::string tool_call_id;            // of a tool: the call that this answers
};

struct ChatRequest {
  std::vector<Message> messages;
  // The API's array of {"type":"function","function":{...}}. A view: its JsonDocument must outlive the
  // request.
  std::optional<JsonValue> tools;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the prompt ends inside the last message
  std::string reasoning_effort;         // empty: the template's own default
  // Further variables for the template (an object, viewed like `tools`).
  std::optional<JsonValue> template_variables;
};

// A prompt's text and the parts of it that the template itself wrote: Tokenizer::encode(text, trusted) makes
// control tokens only inside those, so nothing that a client sent can become one.
struct RenderedPrompt {
  std::string text;
  std::vector<TextSpan> trusted;  // ascending, disjoint, not empty
};

}  // namespace nibble
