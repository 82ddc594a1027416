#include <immintrin.h>

#include "ops/fixed_math_avx512.h"
#include "ops/latent_attention/latent_kernels.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_LANES __attribute__((target("avx512f,avx512dq,avx2")))

namespace nibble::avx512_latent {
namespace {

// Sixteen sums, with what they are made of beside them in thirty-two registers.
constexpr int lanes = 16, many_queries = 4, many_positions = 4, sum_registers = 4;
using Floats = __m512;

NIBBLE_LANES inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
NIBBLE_LANES inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm512_set1_ps(a); }
// a * b + c, rounded once.
NIBBLE_LANES inline Floats fused_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
NIBBLE_LANES inline float tree_sum(const Floats (&sums)[1]) { return nibble::tree_sum(sums[0]); }

}  // namespace

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx2");
}

#include "ops/latent_attention/latent_kernels_lanes.inc"

NIBBLE_LANES void widen(const Bf16* from, int n, float* to) {
  for (int i = 0; i < n; i += lanes) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    store(to + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
  }
}

}  // namespace nibble::avx512_latent
