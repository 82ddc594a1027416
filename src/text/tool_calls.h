// Calls that an answer without channels makes: <tool_call>, a JSON object with "name" and "arguments",
// </tool_call> (Hermes' form, which Qwen3 was trained on). The markers are tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/token_id.h"
#include "text/tokenizer.h"

namespace nibble {

struct CallTokens {
  TokenId open = -1;
  TokenId close = -1;

  // Nothing if the vocabulary does not have both as tokens of their own.
  static std::optional<CallTokens> find(const Tokenizer& tokenizer);
};

struct SpokenCall {
  std::string name;
  std::string arguments;  // JSON text
};

// Of the text between the markers; nothing: it is no call, and so it is text.
std::optional<SpokenCall> read_call(std::string_view text);

}  // namespace nibble
