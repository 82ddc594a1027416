// What a client needs to make prompts by itself: the model's tokenizer_config.json with its chat template, as
// vLLM's GET /tokenizer_info tells it.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace nibble {

// JSON of one object with "tokenizer_class" in it, and "chat_template" if the model has one.
Result<std::string> tokenizer_info(const std::filesystem::path& model_dir);

}  // namespace nibble
