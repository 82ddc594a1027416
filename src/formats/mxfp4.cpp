#include "formats/mxfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace nibble {
namespace {

constexpr std::array<float, 16> make_e2m1_values() {
  std::array<float, 16> values{};
  for (std::uint8_t code = 0; code < 16; ++code) values[code] = E2m1{code}.to_float();
  return values;
}
constexpr std::array<float, 16> e2m1_values = make_e2m1_values();

// amax is finite and above zero.
E8m0 block_scale(float amax, Mxfp4Scale convention) {
  int exponent = 0;
  const float fraction = std::frexp(amax, &exponent);  // amax = fraction * 2^exponent, fraction in [0.5, 1)
  const int floor_log2 = exponent - 1;
  // 6 * 2^e = 0.75 * 2^(e + 3), so e = floor_log2 - 2 holds amax exactly when its fraction is at most 0.75.
  const bool up = convention == Mxfp4Scale::round_up && fraction > 0.75f;
  return E8m0::from_exponent(floor_log2 - 2 + (up ? 1 : 0));
}

#if defined(__SSE2__)
// A block of ordinary bfloat16 values at once; false where its largest magnitude asks for the general way.
// Dividing by a power of two subtracts from the exponent field; what falls below it is far below the smallest
// code anyway.
bool encode_ordinary(const Bf16* values, Mxfp4Scale convention, std::uint8_t* codes, std::uint8_t& scale) {
  constexpr int least = 0x0d80, infinite = 0x7f80;  // 2^-100
  __m128i words[4], largest = _mm_setzero_si128();
  const __m128i magnitude = _mm_set1_epi16(0x7fff);
  for (int i = 0; i < 4; ++i) {
    words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 8 * i));
    largest = _mm_max_epi16(largest, _mm_and_si128(words[i], magnitude));
  }
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 8));
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 4));
  largest = _mm_max_epi16(largest, _mm_srli_si128(largest, 2));
  const int amax = _mm_extract_epi16(largest, 0);
  if (amax < least || amax >= infinite) return false;
  // As block_scale: up where the fraction, (128 + mantissa) / 256, is past 3/4.
  const bool up = convention == Mxfp4Scale::round_up && (amax & 0x7f) > 0x40;
  scale = static_cast<std::uint8_t>((amax >> 7) - 2 + (up ? 1 : 0));
  const __m128i shift = _mm_set1_epi16(static_cast<short>((int{scale} - 127) * 128));
  // A code is the number of middles between codes that lie below the value, or on it where the upper code is
  // even: 0.25, 0.75, 1.25, 1.75, 2.5, 3.5 and 5.
  constexpr short middles[] = {0x3e80, 0x3f40 - 1, 0x3fa0, 0x3fe0 - 1, 0x4020, 0x4060 - 1, 0x40a0};
  __m128i bytes[4];
  for (int i = 0; i < 4; ++i) {
    const __m128i bits = _mm_sub_epi16(_mm_and_si128(words[i], magnitude), shift);
    __m128i code = _mm_and_si128(_mm_srli_epi16(words[i], 12), _mm_set1_epi16(8));
    for (const short middle : middles)
      code = _mm_sub_epi16(code, _mm_cmpgt_epi16(bits, _mm_set1_epi16(middle)));
    // The two codes of a byte lie in the words of one double word.
    bytes[i] = _mm_madd_epi16(code, _mm_set1_epi32(1 | 16 << 16));
  }
  const __m128i low = _mm_packs_epi32(bytes[0], bytes[1]), high = _mm_packs_epi32(bytes[2], bytes[3]);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm_packus_epi16(low, high));
  return true;
}
#else
bool encode_ordinary(const Bf16*, Mxfp4Scale, std::uint8_t*, std::uint8_t&) { return false; }
#endif

}  // namespace

void mxfp4_decode_block(const std::uint8_t* codes, E8m0 scale, float* values) {
  const float factor = scale.to_float();
  for (std::size_t i = 0; i < mxfp4_block_bytes; ++i) {
    values[2 * i] = e2m1_values[codes[i] & 0xfu] * factor;
    values[2 * i + 1] = e2m1_values[codes[i] >> 4] * factor;
  }
}

E8m0 mxfp4_encode_block(const float* values, Mxfp4Scale convention, std::uint8_t* codes) {
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < mxfp4_block; ++i) {
    finite = finite && std::isfinite(values[i]);
    amax = std::max(amax, std::fabs(values[i]));
  }
  if (!finite) {
    std::fill_n(codes, mxfp4_block_bytes, std::uint8_t{0});
    return {E8m0::nan_bits};
  }
  const E8m0 scale = amax == 0 ? E8m0{0} : block_scale(amax, convention);
  const int exponent = 127 - int{scale.bits};
  const auto encode = [&](float value) {
    // In double the division is exact; what float32 then flushes is far below the smallest code.
    return E2m1::from_float(static_cast<float>(std::ldexp(static_cast<double>(value), exponent))).bits;
  };
  for (std::size_t i = 0; i < mxfp4_block_bytes; ++i) {
    codes[i] = static_cast<std::uint8_t>(encode(values[2 * i]) | encode(values[2 * i + 1]) << 4);
  }
  return scale;
}

void mxfp4_encode(std::span<const Bf16> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales) {
  NIBBLE_CHECK(values.size() % mxfp4_block == 0);
  for (std::size_t block = 0; block < values.size() / mxfp4_block; ++block, codes += mxfp4_block_bytes) {
    const Bf16* of_block = values.data() + block * mxfp4_block;
    if (encode_ordinary(of_block, convention, codes, scales[block])) continue;
    float wide[mxfp4_block];
    for (int i = 0; i < mxfp4_block; ++i) wide[i] = of_block[i].to_float();
    scales[block] = mxfp4_encode_block(wide, convention, codes).bits;
  }
}

Result<Mxfp4Checkpoint> mxfp4_checkpoint_matrix(const ConstTensor& blocks, const ConstTensor& scales) {
  if (blocks.dtype != DType::u8 || blocks.shape.rank() != 3 || blocks.shape[2] != mxfp4_block_bytes) {
    return invalid_argument("MXFP4 blocks must be u8 [rows, cols / 32, 16], not " +
                            std::string(dtype_name(blocks.dtype)) + " " + blocks.shape.to_string());
  }
  if (scales.dtype != DType::u8 || scales.shape != Shape({blocks.shape[0], blocks.shape[1]})) {
    return invalid_argument("MXFP4 scales for blocks " + blocks.shape.to_string() + " must be u8 " +
                            Shape({blocks.shape[0], blocks.shape[1]}).to_string() + ", not " +
                            std::string(dtype_name(scales.dtype)) + " " + scales.shape.to_string());
  }
  return Mxfp4Checkpoint{.blocks = blocks.as<std::uint8_t>().data(),
                         .scales = scales.as<std::uint8_t>().data(),
                         .rows = blocks.shape[0],
                         .cols = blocks.shape[1] * mxfp4_block};
}

void mxfp4_decode_row(const Mxfp4Checkpoint& matrix, std::int64_t row, std::span<float> values) {
  NIBBLE_CHECK(row >= 0 && row < matrix.rows);
  NIBBLE_CHECK(values.size() == static_cast<std::size_t>(matrix.cols));
  const std::int64_t blocks = matrix.cols / mxfp4_block;
  for (std::int64_t block = 0; block < blocks; ++block) {
    mxfp4_decode_block(matrix.blocks + (row * blocks + block) * mxfp4_block_bytes,
                       E8m0{matrix.scales[row * blocks + block]}, values.data() + block * mxfp4_block);
  }
}

}  // namespace nibble
