#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "formats/codec_kernels.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

// On each function, not on the file: what the headers define inline must run on any machine.
#define NIBBLE_LANES __attribute__((target("avx2,f16c")))

namespace nibble {
namespace {

constexpr int lanes = 8;
using Floats = __m256;
using Ints = __m256i;

inline float widened(Bf16 value) { return value.to_float(); }
inline float widened(float value) { return value; }

NIBBLE_LANES inline Ints as_ints(Floats a) { return _mm256_castps_si256(a); }
NIBBLE_LANES inline Floats as_floats(Ints a) { return _mm256_castsi256_ps(a); }
NIBBLE_LANES inline Ints splat(std::int32_t a) { return _mm256_set1_epi32(a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm256_set1_ps(a); }
NIBBLE_LANES inline Ints and_ints(Ints a, Ints b) { return _mm256_and_si256(a, b); }
NIBBLE_LANES inline Ints or_ints(Ints a, Ints b) { return _mm256_or_si256(a, b); }
NIBBLE_LANES inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
NIBBLE_LANES inline Ints sub_ints(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
NIBBLE_LANES inline Ints min_ints(Ints a, Ints b) { return _mm256_min_epi32(a, b); }
NIBBLE_LANES inline Ints max_ints(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
template <int bits>
NIBBLE_LANES inline Ints shift_right(Ints a) {
  return _mm256_srli_epi32(a, bits);
}
NIBBLE_LANES inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
NIBBLE_LANES inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
NIBBLE_LANES inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
NIBBLE_LANES inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }

NIBBLE_LANES inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
NIBBLE_LANES inline Floats load(const Bf16* from) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
NIBBLE_LANES inline Ints load_ints(const std::int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
NIBBLE_LANES inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }

// Sixteen codes of 32 bits as 16 bits each, in order.
NIBBLE_LANES inline __m256i narrowed(const Ints (&part)[2]) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(part[0], part[1]), 0xd8);
}
NIBBLE_LANES inline void store_bytes(std::uint8_t* to, const Ints (&part)[2]) {
  const __m256i words = narrowed(part);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
NIBBLE_LANES inline void store_nibbles(std::uint8_t* to, const Ints (&part)[2]) {
  // The two codes of a byte lie in the words of one double word.
  const __m256i bytes = _mm256_madd_epi16(narrowed(part), _mm256_set1_epi32(1 | 16 << 16));
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}

// The values of sixteen codes.
NIBBLE_LANES inline void load_e2m1(const std::uint8_t* codes, Floats (&values)[2]) {
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_and_si128(pairs, _mm_set1_epi8(0xf));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(0xf));
  const __m128i bytes = _mm_unpacklo_epi8(low, high);
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m128i halves[2] = {bytes, _mm_srli_si128(bytes, 8)};
  for (int p = 0; p < 2; ++p) {
    const __m256i wide = _mm256_cvtepu8_epi32(halves[p]);  // the permutation looks at three bits
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(wide, 3), 31);
    values[p] = _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, wide), _mm256_castsi256_ps(sign));
  }
}
NIBBLE_LANES inline void load_e4m3(const std::uint8_t* codes, Floats (&values)[2]) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m256i words = _mm256_cvtepu8_epi16(bytes);
  // As fp16 the same bits are 2^-8 of the value, subnormals too; what is NaN here is a number there.
  const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_slli_epi16(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), 10);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
  const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
  const __m256 factor = _mm256_set1_ps(256.0f);
  values[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor);
  values[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor);
}

// Bfloat16 numbers by their bits, 16 lanes of 16.
constexpr int word_lanes = 16;
using Words = __m256i;
NIBBLE_LANES inline Words load_words(const Bf16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
NIBBLE_LANES inline Words splat_word(int a) { return _mm256_set1_epi16(static_cast<short>(a)); }
NIBBLE_LANES inline Words and_words(Words a, Words b) { return _mm256_and_si256(a, b); }
NIBBLE_LANES inline Words or_words(Words a, Words b) { return _mm256_or_si256(a, b); }
NIBBLE_LANES inline Words add_words(Words a, Words b) { return _mm256_add_epi16(a, b); }
NIBBLE_LANES inline Words sub_words(Words a, Words b) { return _mm256_sub_epi16(a, b); }
NIBBLE_LANES inline Words min_words(Words a, Words b) { return _mm256_min_epi16(a, b); }
NIBBLE_LANES inline Words max_words(Words a, Words b) { return _mm256_max_epi16(a, b); }
template <int bits>
NIBBLE_LANES inline Words shift_words(Words a) {
  return _mm256_srli_epi16(a, bits);
}
NIBBLE_LANES inline Words add_if_greater(Words sum, Words a, Words b) {
  return _mm256_sub_epi16(sum, _mm256_cmpgt_epi16(a, b));
}
// Whether a lane has a > 0 and b < 0.
NIBBLE_LANES inline bool any_positive_and_negative(Words a, Words b) {
  const __m256i zero = _mm256_setzero_si256();
  return _mm256_testz_si256(_mm256_cmpgt_epi16(a, zero), _mm256_cmpgt_epi16(zero, b)) == 0;
}
NIBBLE_LANES inline void store_word_bytes(std::uint8_t* to, Words words) {
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
NIBBLE_LANES inline void store_word_nibbles(std::uint8_t* to, Words words) {
  const __m256i bytes = _mm256_madd_epi16(words, _mm256_set1_epi32(1 | 16 << 16));
  const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(half, half));
}
// Whether a lane of a lies in [0, b), as unsigned numbers.
NIBBLE_LANES inline bool any_below(Ints a, std::int32_t b) {
  const __m256i least = _mm256_min_epu32(a, _mm256_set1_epi32(b - 1));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(least, a)) != 0;
}

NIBBLE_LANES inline std::int32_t largest_lane(Ints a) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
template <int count>
NIBBLE_LANES inline std::int32_t largest_bf16(const Bf16* values) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < count; i += 16) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
    largest = _mm256_max_epi16(largest, _mm256_and_si256(words, magnitude));
  }
  const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  // The instruction finds a smallest word.
  const __m128i found = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return _mm_extract_epi16(found, 0) ^ 0xffff;
}

#include "formats/codec_kernels_lanes.inc"

// Every CPU with AVX2 has F16C, which clang 14 cannot ask for by name.
bool supported() { return __builtin_cpu_supports("avx2"); }

}  // namespace

const CodecKernels avx2_codec_kernels{.name = "avx2",
                                      .supported = supported,
                                      .bf16 = encoders<Bf16>(),
                                      .f32 = encoders<float>(),
                                      .mxfp4_decode = decode_mxfp4,
                                      .mxfp8_decode = decode_mxfp8,
                                      .nvfp4_decode = decode_nvfp4,
                                      .e4m3_decode = decode_e4m3};

}  // namespace nibble
