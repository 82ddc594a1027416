// fixed_exp for sixteen floats, with the same bits: 2^n in one scaling instead of two factors, since
// neither form rounds before its last step.
#pragma once

#include <immintrin.h>

#include <initializer_list>
#include <limits>

namespace nibble {

__attribute__((target("avx512f"), always_inline)) inline __m512 fixed_exp_sixteen(__m512 x) {
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), magic), magic);
  const __m512 r = _mm512_add_ps(_mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(0.693359375f))),
                                 _mm512_mul_ps(n, _mm512_set1_ps(2.12194440e-4f)));
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(coefficient));
  }
  const __m512 value =
      _mm512_add_ps(_mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(r, r)), r), _mm512_set1_ps(1.0f));
  const __m512 scaled = _mm512_scalef_ps(value, n);
  // A NaN passes through the arithmetic and fails both comparisons.
  const __m512 result =
      _mm512_mask_mov_ps(scaled, _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.72283f), _CMP_GT_OQ),
                         _mm512_set1_ps(std::numeric_limits<float>::infinity()));
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ), result);
}

// The fixed tree: lane l with l + 8, then 4, 2, 1.
__attribute__((target("avx512f,avx512dq,avx2"), always_inline)) inline float tree_sum(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace nibble
