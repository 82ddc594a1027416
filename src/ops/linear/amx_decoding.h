// Rows of weights as the tiles want them: a step of 32 in the order of k, as bfloat16 that its scale has been
// multiplied into, exactly.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "ops/linear/block_groups512.h"

namespace nibble::amx {

// What a scale makes of a code, as bfloat16: nothing for scales that may not be multiplied into weights, of
// which there are only blocks of zeros.
struct Mxfp4Values {
  // Twice, as the permutation looks at five bits of a word and a code has four.
  alignas(64) std::uint16_t by_scale[256][32];
};
inline constexpr Mxfp4Values mxfp4_values = [] {
  Mxfp4Values table{};
  for (int scale = scale_byte_min; scale <= scale_byte_max; ++scale) {
    for (int i = 0; i < 32; ++i) {
      // Both zeros become the positive one: no sum can tell.
      if (i % 8 == 0) continue;
      const float value = E2m1{static_cast<std::uint8_t>(i % 16)}.to_float();
      table.by_scale[scale][i] = Bf16::from_float(value * std::bit_cast<float>(scale << 23)).bits;
    }
  }
  return table;
}();

// Bytes become floats without a conversion: u = code + 128 in the lowest bits of 2^23 is 2^23 + u, and one
// fused multiply-add takes 2^23 + 128 off and scales what is left, exactly.
struct Q8Factors {
  float factor[256], offset[256];
};
inline constexpr Q8Factors q8_factors = [] {
  Q8Factors table{};
  for (int scale = scale_byte_min; scale <= scale_byte_max; ++scale) {
    table.factor[scale] = std::bit_cast<float>(scale << 23);
    table.offset[scale] = -(0x1p23f + 128) * table.factor[scale];
  }
  return table;
}();

// One step of one row as scaled bfloat16.
NIBBLE_512_INLINE __m512i decode_step(const std::uint8_t* codes, const std::uint8_t* scale,
                                      const Mxfp4Decoder*) {
  const __m512i values = _mm512_load_si512(mxfp4_values.by_scale[*scale]);
  // byte * (1 + 2^12): the lower code in the low half, the upper one in the high half.
  const __m512i pairs = _mm512_madd_epi16(_mm512_cvtepu8_epi32(part_at(codes)), _mm512_set1_epi32(0x1001));
  return _mm512_permutexvar_epi16(pairs, values);
}

// Codes of even k and of odd k apart, their upper halves then make pairs.
NIBBLE_512_INLINE __m512i decode_step(const std::uint8_t* codes, const std::uint8_t* scale,
                                      const Q8Decoder*) {
  alignas(64) static constexpr std::array<std::uint32_t, 16> even_bytes = [] {
    std::array<std::uint32_t, 16> bytes{};
    for (std::uint32_t j = 0; j < 16; ++j) bytes[j] = 2 * j;
    return bytes;
  }();
  constexpr __mmask64 lowest_bytes = 0x1111111111111111ull;
  const __m512i even = _mm512_load_si512(even_bytes.data()),
                odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  const __m512i shifted = _mm512_castsi256_si512(
      _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi8(-128)));
  const __m512i two_to_23 = _mm512_set1_epi32(0x4b000000);
  const __m512 factor = _mm512_set1_ps(q8_factors.factor[*scale]);
  const __m512 offset = _mm512_set1_ps(q8_factors.offset[*scale]);
  const auto scaled = [&](__m512i bytes) NIBBLE_512 {
    const __m512i spread = _mm512_mask_permutexvar_epi8(two_to_23, lowest_bytes, bytes, shifted);
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(spread), factor, offset));
  };
  return _mm512_or_si512(_mm512_srli_epi32(scaled(even), 16), scaled(odd));
}

NIBBLE_512_INLINE __m512i decode_step(const std::uint8_t* codes, const std::uint8_t*, const Bf16Decoder*) {
  return _mm512_loadu_si512(codes);
}

}  // namespace nibble::amx
