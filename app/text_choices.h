// The rows of a plan that say how answers are sampled and read, and what formats may cost.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "server/api/sampling_defaults.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"

namespace nibble {

// `chat` is null where the model has no chat template.
std::vector<Choice> text_choices(const Tokenizer& tokenizer, const ChatPrompter* chat);
// How requests are sampled that say nothing of it. is_models: not asked for otherwise.
Choice sampling_choice(const api::SamplingDefaults& sampling, bool is_models);

}  // namespace nibble
