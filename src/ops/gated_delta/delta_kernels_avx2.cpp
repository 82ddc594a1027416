#include <immintrin.h>

#include "ops/fixed_math_avx2.h"
#include "ops/gated_delta/delta_kernels.h"
#include "ops/gated_delta/delta_math.h"
#include "ops/gated_delta/delta_state.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_LANES __attribute__((target("avx2")))

namespace nibble::avx2_delta {
namespace {

constexpr int lanes = 8;
using Floats = __m256;

NIBBLE_LANES inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
NIBBLE_LANES inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm256_set1_ps(a); }
NIBBLE_LANES inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
NIBBLE_LANES inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
NIBBLE_LANES inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
NIBBLE_LANES inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
NIBBLE_LANES inline Floats exp_of_negated(Floats a) {
  return fixed_exp_eight(_mm256_xor_ps(a, _mm256_set1_ps(-0.0f)));
}
NIBBLE_LANES inline float tree_sum(const Floats (&sums)[2]) {
  const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace

bool supported() { return __builtin_cpu_supports("avx2"); }

#include "ops/gated_delta/delta_kernels_lanes.inc"

}  // namespace nibble::avx2_delta
