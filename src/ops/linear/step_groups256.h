// What the kernels by AVX2 share in which a lane is a step of one row, eight steps a group.
#pragma once

#include <cstring>

#include "ops/linear/simd256.h"
#include "ops/linear/step_rows.h"

namespace nibble {

inline constexpr int group_steps = 8;
// Weights are asked for so long before their use: a processor's own prefetching does not look past a page.
inline constexpr int group_bytes_ahead = 65536;

inline constexpr int groups_of(int steps) { return (steps + group_steps - 1) / group_steps; }

// A group's bytes, of which the last of a row may have fewer steps: the others are zeros.
template <class Lanes>
struct LastGroup {
  alignas(32) std::uint8_t codes[group_steps * Lanes::step_bytes];
  std::uint8_t scales[group_steps];

  LastGroup(const std::uint8_t* from, const std::uint8_t* scales_from, int steps) {
    std::memset(codes, 0, sizeof codes);
    std::memset(scales, 127, sizeof scales);
    std::memcpy(codes, from, static_cast<std::size_t>(steps * Lanes::step_bytes));
    if (Lanes::scaled) std::memcpy(scales, scales_from, static_cast<std::size_t>(steps));
  }
};

// Steps' sums times scales, the smallest and the NaN among them.
[[gnu::noinline]] NIBBLE_AVX2 inline __m256 scaled_with_care(__m256 sums, __m256i scales) {
  const __m256i smallest = _mm256_cmpeq_epi32(scales, _mm256_setzero_si256());
  const __m256i nan = _mm256_cmpeq_epi32(scales, _mm256_set1_epi32(255));
  // 2^-127 is subnormal and would count as zero, so it comes in two factors.
  const __m256 half =
      _mm256_blendv_ps(_mm256_set1_ps(1.0f), _mm256_set1_ps(0.5f), _mm256_castsi256_ps(smallest));
  const __m256i exponents = _mm256_slli_epi32(_mm256_max_epi32(scales, _mm256_set1_epi32(1)), 23);
  const __m256i factors = _mm256_blendv_epi8(exponents, _mm256_set1_epi32(0x7fc00000), nan);
  return _mm256_mul_ps(_mm256_mul_ps(sums, half), _mm256_castsi256_ps(factors));
}

NIBBLE_AVX2 inline __m128i eight_at(const std::uint8_t* scales) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
}

// E8M0 scales of a group as factors, which those of extreme ones are not: 0 and 255.
struct GroupScales {
  __m256i bytes;
  __m256 factors;
  bool extreme;

  explicit NIBBLE_AVX2 GroupScales(__m128i eight) {
    bytes = _mm256_cvtepu8_epi32(eight);
    factors = _mm256_castsi256_ps(_mm256_slli_epi32(bytes, 23));
    const __m128i shifted = _mm_sub_epi8(eight, _mm_set1_epi8(1));  // they become the largest
    const __m128i largest = _mm_max_epu8(shifted, _mm_set1_epi8(static_cast<char>(254)));
    extreme = (_mm_movemask_epi8(_mm_cmpeq_epi8(largest, shifted)) & 0xff) != 0;
  }
};

}  // namespace nibble
