// Integers of four bits with a bfloat16 scale for each 32 columns: value = (code - 8) * scale, rounded to
// bfloat16 once, as compressed-tensors has it when it unpacks a checkpoint. Eight codes lie in a word from
// its low bits on, so in memory two to a byte, the low nibble first.
#pragma once

#include <array>
#include <cstddef>

#include "formats/bf16.h"

namespace nibble {

inline constexpr int int4_group = 32;

// What the codes of a group stand for.
inline std::array<Bf16, 16> int4_values(Bf16 scale) {
  std::array<Bf16, 16> values;
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = Bf16::from_float((static_cast<float>(code) - 8.0f) * scale.to_float());
  return values;
}

}  // namespace nibble
