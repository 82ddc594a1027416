// How fast this machine multiplies: the bound of a prefill step, measured in the same run.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace nibble {

struct PeakRate {
  double flops = 0;              // a second; a multiply-add is two
  std::string_view instruction;  // that gave it
};

// What is multiplied: float32 values, bfloat16 ones into sums in float32, or eight-bit codes into integers.
enum class PeakValues : std::uint8_t { float32, bfloat16, int8 };

// What `threads` threads reach together in registers alone, with the fastest instruction of this CPU for such
// values, or for wider ones. The best of a few passes.
Result<PeakRate> measure_peak_rate(int threads, PeakValues values);

}  // namespace nibble
