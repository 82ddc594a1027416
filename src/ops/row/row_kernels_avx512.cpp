#include "ops/row/row_kernels_avx512.h"

#include <immintrin.h>

#include <limits>

#include "ops/fixed_math_avx512.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2")))

namespace nibble::avx512_rows {
namespace {

constexpr int lanes = 16;

// The lanes that exist from element i on.
inline __mmask16 rest(int i, int n) {
  return n - i >= lanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n - i)) - 1);
}

NIBBLE_AVX512 inline __m512 round_to_bf16(__m512 value) {
  const __m512i wide = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(wide, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(wide, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(wide, _mm512_set1_epi32(0x00400000));
  const __m512i chosen =
      _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), quiet);
  return _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

}  // namespace

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx2");
}

NIBBLE_AVX512 float add_and_square(float* x, const float* delta, int n) {
  __m512 sums = _mm512_setzero_ps();
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    __m512 value = _mm512_maskz_loadu_ps(mask, x + i);
    if (delta != nullptr) {
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, delta + i));
      _mm512_mask_storeu_ps(x + i, mask, value);
    }
    sums = _mm512_add_ps(sums, _mm512_mul_ps(value, value));
  }
  return tree_sum(sums);
}

NIBBLE_AVX512 void scale(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out) {
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    const __m512 weights = _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, weight + i)), 16));
    const __m512 value =
        _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(factor)), weights);
    _mm512_mask_storeu_ps(out + i, mask, narrow ? round_to_bf16(value) : value);
  }
}

NIBBLE_AVX512 void rotate(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; i += lanes) {
    const __mmask16 mask = rest(i, half);
    const __m512 a = _mm512_maskz_loadu_ps(mask, x + i), b = _mm512_maskz_loadu_ps(mask, x + half + i);
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
    _mm512_mask_storeu_ps(x + i, mask, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
    _mm512_mask_storeu_ps(x + half + i, mask, _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s)));
  }
}

NIBBLE_AVX512 RowScan scan(const float* x, int n) {
  __m512 largest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  // A finite number times 0 is 0; of the others comes a NaN, which stays.
  __m512 trace = _mm512_setzero_ps();
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    const __m512 value = _mm512_maskz_loadu_ps(mask, x + i);
    largest = _mm512_mask_max_ps(largest, mask, value, largest);
    trace = _mm512_add_ps(trace, _mm512_mul_ps(value, _mm512_setzero_ps()));
  }
  return {.largest = _mm512_reduce_max_ps(largest),
          .finite = _mm512_cmp_ps_mask(trace, trace, _CMP_UNORD_Q) == 0};
}

NIBBLE_AVX512 double exp_sum(const float* x, float largest, int n) {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();  // lanes 0..7 and 8..15
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    const __m512 weight = _mm512_maskz_mov_ps(
        mask, fixed_exp_sixteen(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(largest))));
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(weight)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(weight, 1)));
  }
  const __m512d eight = _mm512_add_pd(low, high);
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

NIBBLE_AVX512 void weigh(const float* x, float largest, float temperature, int n, float* out) {
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    const __m512 below = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(largest));
    _mm512_mask_storeu_ps(out + i, mask,
                          fixed_exp_sixteen(_mm512_div_ps(below, _mm512_set1_ps(temperature))));
  }
}

NIBBLE_AVX512 float dot(const float* a, const float* b, int n) {
  __m512 sums = _mm512_setzero_ps();
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    sums = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(mask, a + i), _mm512_maskz_loadu_ps(mask, b + i), sums,
                                 mask);
  }
  return tree_sum(sums);
}

NIBBLE_AVX512 void add_scaled(float* sum, float factor, const float* x, int n) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int i = 0; i < n; i += lanes) {
    const __mmask16 mask = rest(i, n);
    const __m512 added =
        _mm512_fmadd_ps(factors, _mm512_maskz_loadu_ps(mask, x + i), _mm512_maskz_loadu_ps(mask, sum + i));
    _mm512_mask_storeu_ps(sum + i, mask, added);
  }
}

}  // namespace nibble::avx512_rows
