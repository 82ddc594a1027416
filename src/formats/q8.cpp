#include "formats/q8.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace nibble {
namespace {

// The scale byte of a block whose largest magnitude has these bfloat16 bits. With amax = f * 2^x, f in
// [0.5, 1), amax <= 127 * 2^(x - 7) exactly when f <= 127 / 128, that is, unless all mantissa bits are set.
std::uint8_t scale_of(int magnitude) {
  if (magnitude >= 0x7f80) return E8m0::nan_bits;
  if (magnitude == 0) return 127;
  const int scale = (magnitude >> 7) - 6 + ((magnitude & 0x7f) == 0x7f ? 1 : 0);
  return static_cast<std::uint8_t>(std::max(scale, 0));
}

// 2^-e in two factors, each a normal float32: for the smallest scale it is 2^127.
struct Inverse {
  float first, second;
};
Inverse inverse_of(std::uint8_t scale) {
  const int exponent = 127 - int{scale}, half = exponent / 2;
  return {std::bit_cast<float>((half + 127) << 23), std::bit_cast<float>((exponent - half + 127) << 23)};
}

}  // namespace

#if defined(__SSE2__)

E8m0 q8_encode_block(const Bf16* values, std::int8_t* codes) {
  __m128i words[4], largest = _mm_setzero_si128();
  for (int i = 0; i < 4; ++i) {
    words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 8 * i));
    largest = _mm_max_epi16(largest, _mm_and_si128(words[i], _mm_set1_epi16(0x7fff)));
  }
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 8));
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 4));
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 2));
  const std::uint8_t scale = scale_of(_mm_extract_epi16(largest, 0));
  if (scale == E8m0::nan_bits) {
    std::fill_n(codes, q8_block, std::int8_t{0});
    return {scale};
  }
  const Inverse inverse = inverse_of(scale);
  const __m128 first = _mm_set1_ps(inverse.first), second = _mm_set1_ps(inverse.second);
  const auto integers = [&](__m128i floats) {
    return _mm_cvtps_epi32(_mm_mul_ps(_mm_mul_ps(_mm_castsi128_ps(floats), first), second));
  };
  __m128i shorts[4];
  for (int i = 0; i < 4; ++i) {
    shorts[i] = _mm_packs_epi32(integers(_mm_unpacklo_epi16(_mm_setzero_si128(), words[i])),
                                integers(_mm_unpackhi_epi16(_mm_setzero_si128(), words[i])));
  }
  __m128i* out = reinterpret_cast<__m128i*>(codes);
  _mm_storeu_si128(out, _mm_packs_epi16(shorts[0], shorts[1]));
  _mm_storeu_si128(out + 1, _mm_packs_epi16(shorts[2], shorts[3]));
  return {scale};
}

#else

E8m0 q8_encode_block(const Bf16* values, std::int8_t* codes) {
  int largest = 0;
  for (int i = 0; i < q8_block; ++i) largest = std::max(largest, values[i].bits & 0x7fff);
  const std::uint8_t scale = scale_of(largest);
  const Inverse inverse = inverse_of(scale);
  for (int i = 0; i < q8_block; ++i) {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer.
    const float scaled = values[i].to_float() * inverse.first * inverse.second;
    codes[i] = scale == E8m0::nan_bits ? std::int8_t{0}
                                       : static_cast<std::int8_t>((scaled + 12582912.0f) - 12582912.0f);
  }
  return {scale};
}

#endif

void q8_encode(std::span<const Bf16> values, std::int8_t* codes, std::uint8_t* scales) {
  NIBBLE_CHECK(values.size() % q8_block == 0);
  for (std::size_t block = 0; block < values.size() / q8_block; ++block)
    scales[block] = q8_encode_block(values.data() + block * q8_block, codes + block * q8_block).bits;
}

void q8_decode_row(const Q8Matrix& matrix, std::int64_t row, std::span<float> values) {
  NIBBLE_CHECK(row >= 0 && row < matrix.rows && values.size() == static_cast<std::size_t>(matrix.cols));
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    const E8m0 scale{matrix.scales[row * (matrix.cols / q8_block) + k / q8_block]};
    values[static_cast<std::size_t>(k)] =
        static_cast<float>(matrix.codes[row * matrix.cols + k]) * scale.to_float();
  }
}

}  // namespace nibble
