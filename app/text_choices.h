// The rows of a plan that say how answers are read, and what formats may cost.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"

namespace nibble {

// `chat` is null where the model has no chat template.
std::vector<Choice> text_choices(const Tokenizer& tokenizer, const ChatPrompter* chat);

}  // namespace nibble
