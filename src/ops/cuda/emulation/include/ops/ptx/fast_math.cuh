// The twin of src/ops/ptx/fast_math.cuh on the emulation.
#pragma once

#include <cmath>

namespace nibble::ptx {

inline float reciprocal_fast(float x) { return 1.0f / x; }
inline float inverse_root_fast(float x) { return 1.0f / std::sqrt(x); }

}  // namespace nibble::ptx
