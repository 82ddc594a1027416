#include <immintrin.h>

#include "ops/latent_attention/latent_kernels.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_LANES __attribute__((target("avx2,fma")))

namespace nibble::avx2_latent {
namespace {

// Twelve sums of scores, or eight of latents, with what they are made of beside them in sixteen registers.
constexpr int lanes = 8, many_queries = 2, many_positions = 3, sum_registers = 2;
using Floats = __m256;

NIBBLE_LANES inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
NIBBLE_LANES inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm256_set1_ps(a); }
// a * b + c, rounded once.
NIBBLE_LANES inline Floats fused_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
NIBBLE_LANES inline float tree_sum(const Floats (&sums)[2]) {
  const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#include "ops/latent_attention/latent_kernels_lanes.inc"

NIBBLE_LANES void widen(const Bf16* from, int n, float* to) {
  for (int i = 0; i < n; i += lanes) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    store(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
  }
}

}  // namespace nibble::avx2_latent
