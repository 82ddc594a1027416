// Which models of the Hugging Face cache run on a machine, what they need there, and why the others do not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache_contents.h"
#include "plan/machine.h"

namespace nibble {

// What is judged: one conversation of this many tokens, or of what the model holds where that is less.
inline constexpr int kConversationTokens = 8192;

struct ModelVerdict {
  bool runs = false;
  std::string why_not;            // empty where it runs
  std::string architecture;       // empty where config.json does not say
  std::int64_t memory_bytes = 0;  // of a rank, for one conversation; 0 where there is no plan
  int conversation_tokens = 0;
  std::string device;  // "cpu" or "cuda", as planned
};

// Looks at config.json, at every file's header, and asks the plan; no weights are read.
ModelVerdict judge_model(const std::filesystem::path& folder, const std::string& name,
                         const Machine& machine);

}  // namespace nibble
