#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "formats/codec_kernels.h"
#include "formats/fp8_block.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

// On each function, not on the file: what the headers define inline must run on any machine.
#define NIBBLE_LANES __attribute__((target("avx2,f16c,fma")))

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
template <int bits>
NIBBLE_LANES inline Ints shift_left(Ints a) {
  return _mm256_slli_epi32(a, bits);
}
NIBBLE_LANES inline Floats min_floats(Floats a, Floats b) { return _mm256_min_ps(a, b); }
// min(|a|, limit), which is the limit for a NaN.
NIBBLE_LANES inline Floats at_most(Floats a, Floats limit) {
  return _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), limit);
}
// a * b + c and c - a * b, rounded once.
NIBBLE_LANES inline Floats fused_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
NIBBLE_LANES inline Floats fused_subtract(Floats c, Floats a, Floats b) { return _mm256_fnmadd_ps(a, b, c); }
NIBBLE_LANES inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
NIBBLE_LANES inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
NIBBLE_LANES inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
NIBBLE_LANES inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }

NIBBLE_LANES inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
NIBBLE_LANES inline Ints load_bits(const Bf16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
NIBBLE_LANES inline Ints load_ints(const std::int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
NIBBLE_LANES inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
NIBBLE_LANES inline void store_past_caches(float* to, Floats a) { _mm256_stream_ps(to, a); }
NIBBLE_LANES inline void finish_past_caches() { _mm_sfence(); }

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

// The lowest byte of each lane, and of each half of a lane.
NIBBLE_LANES inline void store_low_bytes(std::uint8_t* to, Ints a) {
  const __m256i first = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                         0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(a, first);
  const __m128i joined =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), joined);
}
NIBBLE_LANES inline void store_word_bytes(std::uint8_t* to, Ints a) {
  const __m256i words = _mm256_and_si256(a, _mm256_set1_epi16(0xff));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
// The lower halves of the lanes of one, the upper ones of the other.
NIBBLE_LANES inline Ints blend_words(Ints lower, Ints upper) {
  return _mm256_blend_epi16(lower, upper, 0xaa);
}
// yes where x < y, no elsewhere.
NIBBLE_LANES inline Ints select_less(Ints x, Ints y, Ints yes, Ints no) {
  return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(y, x));
}
NIBBLE_LANES inline bool all_less(Ints a, std::int32_t b) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, _mm256_set1_epi32(b - 1))) == 0;
}
// The factor of a block for a register of pairs of its values.
template <int block>
NIBBLE_LANES inline Floats spread(const float* factors) {
  return _mm256_set1_ps(factors[0]);
}

NIBBLE_LANES inline Ints max_words(Ints a, Ints b) { return _mm256_max_epi16(a, b); }
NIBBLE_LANES inline Ints load_magnitudes(const Bf16* from) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                          _mm256_set1_epi16(0x7fff));
}
NIBBLE_LANES inline Ints load_magnitudes(const float* from) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                          _mm256_set1_epi32(0x7fffffff));
}

// Of eight registers of words one: in each 128 bits, the largest word of each register's same 128 bits.
NIBBLE_LANES inline Ints largest_words(const Ints* of) {
  Ints pairs[4], fours[2];
  for (int i = 0; i < 4; ++i)
    pairs[i] = max_words(_mm256_unpacklo_epi16(of[2 * i], of[2 * i + 1]),
                         _mm256_unpackhi_epi16(of[2 * i], of[2 * i + 1]));
  for (int i = 0; i < 2; ++i) {
    fours[i] = max_words(_mm256_unpacklo_epi32(pairs[2 * i], pairs[2 * i + 1]),
                         _mm256_unpackhi_epi32(pairs[2 * i], pairs[2 * i + 1]));
  }
  return max_words(_mm256_unpacklo_epi64(fours[0], fours[1]), _mm256_unpackhi_epi64(fours[0], fours[1]));
}
// The same of four registers of 32 bits.
NIBBLE_LANES inline Ints largest_ints(const Ints* of) {
  Ints pairs[2];
  for (int i = 0; i < 2; ++i)
    pairs[i] = max_ints(_mm256_unpacklo_epi32(of[2 * i], of[2 * i + 1]),
                        _mm256_unpackhi_epi32(of[2 * i], of[2 * i + 1]));
  return max_ints(_mm256_unpacklo_epi64(pairs[0], pairs[1]), _mm256_unpackhi_epi64(pairs[0], pairs[1]));
}

// The bits of the largest magnitude of each of sixteen blocks; those of an infinity and more where a value is
// not finite.
template <int block>
NIBBLE_LANES inline void largest_of_blocks(const Bf16* values, std::int32_t* amax) {
  for (int first = 0; first < 16; first += 8) {
    Ints of[8];
    for (int i = 0; i < 8; ++i) {
      const Bf16* from = values + (first + i) * block;
      of[i] = load_magnitudes(from);
      if constexpr (block == 32) of[i] = max_words(of[i], load_magnitudes(from + 16));
    }
    const Ints all = largest_words(of);
    const __m128i words = _mm_max_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm256_store_si256(reinterpret_cast<__m256i*>(amax + first),
                       _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
}
template <int block>
NIBBLE_LANES inline void largest_of_blocks(const float* values, std::int32_t* amax) {
  for (int first = 0; first < 16; first += 8) {
    Ints fours[2];
    for (int i = 0; i < 2; ++i) {
      Ints of[4];
      for (int j = 0; j < 4; ++j) {
        const float* from = values + (first + 4 * i + j) * block;
        of[j] = load_magnitudes(from);
        for (int k = lanes; k < block; k += lanes) of[j] = max_ints(of[j], load_magnitudes(from + k));
      }
      fours[i] = largest_ints(of);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(amax + first),
                       max_ints(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                                _mm256_permute2x128_si256(fours[0], fours[1], 0x31)));
  }
}

NIBBLE_LANES inline std::int32_t largest_lane(Ints a) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
NIBBLE_LANES inline std::int32_t largest_word(Ints a) {
  const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  // The instruction finds a smallest word.
  const __m128i found = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return _mm_extract_epi16(found, 0) ^ 0xffff;
}

#include "formats/codec_kernels_lanes.inc"

// Every CPU with AVX2 has F16C, which clang 14 cannot ask for by name.
bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

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
