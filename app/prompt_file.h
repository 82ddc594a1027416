// Prompts as `nibble generate --prompts FILE` takes them: JSON lines, each with its own sampling parameters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/sampling_options.h"
#include "base/json.h"
#include "base/status.h"
#include "base/token_id.h"
#include "text/conversation.h"

namespace nibble {

struct PromptSpec {
  enum class Kind { text, ids, messages };
  Kind kind = Kind::text;
  std::string text;
  std::vector<TokenId> ids;
  std::vector<Message> messages;
  std::string case_name;  // given back with the result; empty: none
  GenerationParams params;
  std::string where;  // how messages name it: "line 3 of prompts.jsonl", "--prompt"
};

// A line is {"prompt" | "prompt_ids" | "messages", "case"?, sampling parameters?}; blank lines are skipped.
// What a line leaves open is as in `defaults`. `name` is the file's, for messages.
Result<std::vector<PromptSpec>> parse_prompts(std::string_view content, std::string_view name,
                                              const GenerationParams& defaults);

// "1,2,3"
Result<std::vector<TokenId>> parse_token_ids(std::string_view text);

}  // namespace nibble
