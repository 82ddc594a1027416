// Which modules of a checkpoint are quantized: by what they are, and by patterns on their names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/glob.h"
#include "base/status.h"

namespace nibble {

// What a linear module is, by its name.
enum class ModuleKind : std::uint8_t {
  expert,      // below ".experts"
  linear,      // attention, dense and shared feed-forward
  router,      // what chooses experts
  state_gate,  // few rows that say what a gated delta rule forgets and takes; whoever reads it has it in bf16
  embedding,   // never quantized
  lm_head,
};
ModuleKind module_kind(std::string_view module);

enum class ModuleSet : std::uint8_t {
  automatic,  // experts where there are any, else linear
  experts,
  linear,  // experts and linear
};

struct ModuleChoice {
  ModuleSet set = ModuleSet::automatic;
  std::vector<std::string> include;  // patterns: these too
  std::vector<std::string> exclude;  // patterns: not these, whatever else says so
};

// One of `modules` (names, any order) is true in the result where it is to be quantized. Refuses a pattern
// that matches none, an embedding that is asked for, and a choice of nothing.
Result<std::vector<bool>> choose_modules(const std::vector<std::string>& modules, const ModuleChoice& choice);

}  // namespace nibble
