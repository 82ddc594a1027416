#include <immintrin.h>

#include "ops/fixed_math_avx512.h"
#include "ops/gated_delta/delta_kernels.h"
#include "ops/gated_delta/delta_math.h"
#include "ops/gated_delta/delta_state.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_LANES __attribute__((target("avx512f,avx512dq,avx2")))

namespace nibble::avx512_delta {
namespace {

constexpr int lanes = 16;
using Floats = __m512;

NIBBLE_LANES inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
NIBBLE_LANES inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm512_set1_ps(a); }
NIBBLE_LANES inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
NIBBLE_LANES inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
NIBBLE_LANES inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
NIBBLE_LANES inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
NIBBLE_LANES inline Floats exp_of_negated(Floats a) {
  return fixed_exp_sixteen(_mm512_xor_ps(a, _mm512_set1_ps(-0.0f)));
}
NIBBLE_LANES inline float tree_sum(const Floats (&sums)[1]) { return nibble::tree_sum(sums[0]); }

}  // namespace

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx2");
}

#include "ops/gated_delta/delta_kernels_lanes.inc"

}  // namespace nibble::avx512_delta
