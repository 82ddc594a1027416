// Small pieces that the kernels share which want AVX-512 with VBMI and VNNI. What they are compiled for has
// BF16, too, of which nothing is used but by name (chain_products512.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/linear/dot_tile.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx512vnni,avx2,fma")))
// Of what works on arrays that are registers, which a call would put into memory.
#define NIBBLE_512_INLINE [[gnu::always_inline]] NIBBLE_512 inline

namespace nibble {

// Sixteen registers of sixteen words, transposed in place.
NIBBLE_512_INLINE void transpose_words(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Part b of v[4q + c] now has rows 4q .. 4q + 3 of column 4b + c.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88),
                  b = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88),
                  e = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// Four registers of four words in each of four parts, transposed within the parts.
NIBBLE_512_INLINE void transpose_parts(const __m512i (&rows)[4], __m512i* words) {
  const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
  words[0] = _mm512_unpacklo_epi64(a, c);
  words[1] = _mm512_unpackhi_epi64(a, c);
  words[2] = _mm512_unpacklo_epi64(b, d);
  words[3] = _mm512_unpackhi_epi64(b, d);
}

// Four registers of four parts, transposed: part i of out[p] is part p of rows[i].
NIBBLE_512_INLINE void gather_parts(const __m512i (&rows)[4], __m512i (&out)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(rows[0], rows[1], 0x88),
                b = _mm512_shuffle_i32x4(rows[0], rows[1], 0xdd);
  const __m512i c = _mm512_shuffle_i32x4(rows[2], rows[3], 0x88),
                d = _mm512_shuffle_i32x4(rows[2], rows[3], 0xdd);
  out[0] = _mm512_shuffle_i32x4(a, c, 0x88);
  out[1] = _mm512_shuffle_i32x4(b, d, 0x88);
  out[2] = _mm512_shuffle_i32x4(a, c, 0xdd);
  out[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

// dot_tile.h's bounds on bfloat16 inputs; float_inputs.h has them for one.
NIBBLE_512_INLINE __m512 bounded_bf16_inputs(__m512 x) {
  const __m512 magnitude = _mm512_abs_ps(x);
  const __mmask16 zero = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(smallest_bf16_input), _CMP_LT_OQ);
  const __mmask16 infinite = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(infinite_bf16_input), _CMP_GE_OQ);
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __m512 infinity = _mm512_or_ps(sign, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
  return _mm512_mask_mov_ps(_mm512_mask_mov_ps(x, infinite, infinity), zero, _mm512_setzero_ps());
}

// 32 floats that are bfloat16 values, in the order that `order` gives: its words are 2k + 1.
NIBBLE_512_INLINE __m512i bf16_step(const float* x, __m512i order) {
  const __m512 low = bounded_bf16_inputs(_mm512_loadu_ps(x));
  const __m512 high = bounded_bf16_inputs(_mm512_loadu_ps(x + 16));
  return _mm512_permutex2var_epi16(_mm512_castps_si512(low), order, _mm512_castps_si512(high));
}

NIBBLE_512 inline __m128i part_at(const std::uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// E8M0 scales of steps; past the last one they read as one.
NIBBLE_512 inline __m128i read_scales(const std::uint8_t* scales, int steps) {
  return _mm_mask_loadu_epi8(_mm_set1_epi8(127), static_cast<__mmask16>((1u << steps) - 1), scales);
}

// E8M0 scales as factors, which those of extreme ones are not: 0 and 255.
NIBBLE_512 inline __m512 plain_factors(__m128i scales) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(scales), 23));
}

// Steps' sums times scales, the smallest and the NaN among them: in two factors, as 2^-127 is subnormal and
// would count as zero.
[[gnu::noinline]] NIBBLE_512 inline __m512 scaled_with_care(__m512 sums, __m128i scales) {
  const __m512i wide = _mm512_cvtepu8_epi32(scales);
  const __m512i exponents = _mm512_slli_epi32(_mm512_max_epu32(wide, _mm512_set1_epi32(1)), 23);
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255));
  const __mmask16 smallest = _mm512_testn_epi32_mask(wide, wide);
  const __m512 half = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), smallest, _mm512_set1_ps(0.5f));
  const __m512 scale =
      _mm512_castsi512_ps(_mm512_mask_mov_epi32(exponents, nan, _mm512_set1_epi32(0x7fc00000)));
  return _mm512_mul_ps(_mm512_mul_ps(sums, half), scale);
}

}  // namespace nibble
