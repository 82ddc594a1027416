// How fast this machine multiplies: the bound of a prefill step, measured in the same run.
#pragma once

#include <string_view>

#include "base/status.h"

namespace nibble {

struct PeakRate {
  double flops = 0;              // a second; a multiply-add is two
  std::string_view instruction;  // that gave it
};

// What `threads` threads reach together in registers alone, with the fastest instruction of this CPU that
// sums products in float32: of bfloat16 values where the activations are such, of float32 values otherwise.
// The best of a few passes.
Result<PeakRate> measure_peak_rate(int threads, bool bf16);

}  // namespace nibble
