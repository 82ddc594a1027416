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
#define NIBBLE_LANES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")))

namespace nibble {
namespace {

constexpr int lanes = 16;
using Floats = __m512;
using Ints = __m512i;

inline float widened(Bf16 value) { return value.to_float(); }
inline float widened(float value) { return value; }

NIBBLE_LANES inline Ints as_ints(Floats a) { return _mm512_castps_si512(a); }
NIBBLE_LANES inline Floats as_floats(Ints a) { return _mm512_castsi512_ps(a); }
NIBBLE_LANES inline Ints splat(std::int32_t a) { return _mm512_set1_epi32(a); }
NIBBLE_LANES inline Floats splat(float a) { return _mm512_set1_ps(a); }
NIBBLE_LANES inline Ints and_ints(Ints a, Ints b) { return _mm512_and_si512(a, b); }
NIBBLE_LANES inline Ints or_ints(Ints a, Ints b) { return _mm512_or_si512(a, b); }
NIBBLE_LANES inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
NIBBLE_LANES inline Ints sub_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
NIBBLE_LANES inline Ints min_ints(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
NIBBLE_LANES inline Ints max_ints(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
template <int bits>
NIBBLE_LANES inline Ints shift_right(Ints a) {
  return _mm512_srli_epi32(a, bits);
}
template <int bits>
NIBBLE_LANES inline Ints shift_left(Ints a) {
  return _mm512_slli_epi32(a, bits);
}
NIBBLE_LANES inline Floats min_floats(Floats a, Floats b) { return _mm512_min_ps(a, b); }
// min(|a|, limit), which is the limit for a NaN.
NIBBLE_LANES inline Floats at_most(Floats a, Floats limit) { return _mm512_range_ps(a, limit, 0b1010); }
// a * b + c and c - a * b, rounded once.
NIBBLE_LANES inline Floats fused_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
NIBBLE_LANES inline Floats fused_subtract(Floats c, Floats a, Floats b) { return _mm512_fnmadd_ps(a, b, c); }
NIBBLE_LANES inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
NIBBLE_LANES inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
NIBBLE_LANES inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
NIBBLE_LANES inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }

NIBBLE_LANES inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
NIBBLE_LANES inline Ints load_bits(const Bf16* from) { return _mm512_loadu_si512(from); }
NIBBLE_LANES inline Ints load_ints(const std::int32_t* from) { return _mm512_loadu_si512(from); }
NIBBLE_LANES inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
NIBBLE_LANES inline void store_past_caches(float* to, Floats a) { _mm512_stream_ps(to, a); }
NIBBLE_LANES inline void finish_past_caches() { _mm_sfence(); }

NIBBLE_LANES inline void store_bytes(std::uint8_t* to, const Ints (&part)[1]) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(part[0]));
}
NIBBLE_LANES inline void store_nibbles(std::uint8_t* to, const Ints (&part)[1]) {
  // The two codes of a byte lie in the double words of one quad word.
  const __m512i bytes = _mm512_or_si512(part[0], _mm512_srli_epi64(part[0], 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi8(bytes));
}

// The values of sixteen codes.
NIBBLE_LANES inline void load_e2m1(const std::uint8_t* codes, Floats (&values)[1]) {
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  // The permutation looks at four bits, so the high nibbles need no mask of their own.
  const __m128i bytes = _mm_unpacklo_epi8(pairs, _mm_srli_epi16(pairs, 4));
  const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  values[0] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(bytes), table);
}
NIBBLE_LANES inline void load_e4m3(const std::uint8_t* codes, Floats (&values)[1]) {
  const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  // As fp16 the same bits are 2^-8 of the value, subnormals too; what is NaN here is a number there.
  const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_slli_epi16(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), 10);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
  const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
  values[0] = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

// The lowest byte of each lane, and of each half of a lane.
NIBBLE_LANES inline void store_low_bytes(std::uint8_t* to, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
}
NIBBLE_LANES inline void store_word_bytes(std::uint8_t* to, Ints a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(a));
}
// The lower halves of the lanes of one, the upper ones of the other.
NIBBLE_LANES inline Ints blend_words(Ints lower, Ints upper) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, lower, upper);
}
// yes where x < y, no elsewhere.
NIBBLE_LANES inline Ints select_less(Ints x, Ints y, Ints yes, Ints no) {
  return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(x, y), no, yes);
}
NIBBLE_LANES inline bool all_less(Ints a, std::int32_t b) {
  return _mm512_cmpge_epi32_mask(a, _mm512_set1_epi32(b)) == 0;
}
// The factors of blocks for a register of pairs of their values.
template <int block>
NIBBLE_LANES inline Floats spread(const float* factors) {
  if constexpr (block == 2 * lanes) return _mm512_set1_ps(factors[0]);
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(factors[0]), 0xff00, _mm_load_ss(factors + 1));
}

NIBBLE_LANES inline Ints max_words(Ints a, Ints b) { return _mm512_max_epi16(a, b); }
NIBBLE_LANES inline Ints load_magnitudes(const Bf16* from) {
  return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi16(0x7fff));
}
NIBBLE_LANES inline Ints load_magnitudes(const float* from) {
  return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(0x7fffffff));
}

// Of eight registers of words one: in each 128 bits, the largest word of each register's same 128 bits.
NIBBLE_LANES inline Ints largest_words(const Ints* of) {
  Ints pairs[4], fours[2];
  for (int i = 0; i < 4; ++i)
    pairs[i] = max_words(_mm512_unpacklo_epi16(of[2 * i], of[2 * i + 1]),
                         _mm512_unpackhi_epi16(of[2 * i], of[2 * i + 1]));
  for (int i = 0; i < 2; ++i) {
    fours[i] = max_words(_mm512_unpacklo_epi32(pairs[2 * i], pairs[2 * i + 1]),
                         _mm512_unpackhi_epi32(pairs[2 * i], pairs[2 * i + 1]));
  }
  return max_words(_mm512_unpacklo_epi64(fours[0], fours[1]), _mm512_unpackhi_epi64(fours[0], fours[1]));
}
// The same of four registers of 32 bits.
NIBBLE_LANES inline Ints largest_ints(const Ints* of) {
  Ints pairs[2];
  for (int i = 0; i < 2; ++i)
    pairs[i] = max_ints(_mm512_unpacklo_epi32(of[2 * i], of[2 * i + 1]),
                        _mm512_unpackhi_epi32(of[2 * i], of[2 * i + 1]));
  return max_ints(_mm512_unpacklo_epi64(pairs[0], pairs[1]), _mm512_unpackhi_epi64(pairs[0], pairs[1]));
}
// Of two registers one, with the largest of each two neighbouring 128 bits.
NIBBLE_LANES inline Ints largest_neighbours(Ints a, Ints b) {
  return max_ints(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}
NIBBLE_LANES inline void store_as_float_bits(std::int32_t* to, __m256i words) {
  _mm512_store_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// The bits of the largest magnitude of each of sixteen blocks; those of an infinity and more where a value is
// not finite.
template <int block>
NIBBLE_LANES inline void largest_of_blocks(const Bf16* values, std::int32_t* amax) {
  Ints of[block / 2];
  for (int i = 0; i < block / 2; ++i) of[i] = load_magnitudes(values + 32 * i);
  if constexpr (block == 16) {
    Ints all = largest_words(of);  // of blocks 2i in the first 256 bits, 2i + 1 in the others
    all = max_words(all, _mm512_shuffle_i32x4(all, all, 0xb1));
    const __m128i even = _mm512_castsi512_si128(all), odd = _mm512_extracti32x4_epi32(all, 2);
    store_as_float_bits(amax, _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd)));
  } else {
    __m128i halves[2];
    for (int i = 0; i < 2; ++i) {
      const Ints all = largest_words(of + 8 * i);
      const __m256i folded = _mm256_max_epi16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
      halves[i] = _mm_max_epi16(_mm256_castsi256_si128(folded), _mm256_extracti128_si256(folded, 1));
    }
    store_as_float_bits(amax, _mm256_set_m128i(halves[1], halves[0]));
  }
}
template <int block>
NIBBLE_LANES inline void largest_of_blocks(const float* values, std::int32_t* amax) {
  Ints fours[4];
  for (int i = 0; i < 4; ++i) {
    Ints of[4];
    for (int j = 0; j < 4; ++j) {
      const float* from = values + (4 * i + j) * block;
      of[j] = load_magnitudes(from);
      if constexpr (block == 32) of[j] = max_ints(of[j], load_magnitudes(from + 16));
    }
    fours[i] = largest_ints(of);
  }
  _mm512_store_si512(amax, largest_neighbours(largest_neighbours(fours[0], fours[1]),
                                              largest_neighbours(fours[2], fours[3])));
}

NIBBLE_LANES inline std::int32_t largest_lane(Ints a) {
  const __m256i wide = _mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
NIBBLE_LANES inline std::int32_t largest_word(Ints a) {
  const __m256i wide = _mm256_max_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  // The instruction finds a smallest word.
  const __m128i found = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return _mm_extract_epi16(found, 0) ^ 0xffff;
}

#include "formats/codec_kernels_lanes.inc"

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");  // which F16C comes with
}

}  // namespace

const CodecKernels avx512_codec_kernels{.name = "avx512",
                                        .supported = supported,
                                        .bf16 = encoders<Bf16>(),
                                        .f32 = encoders<float>(),
                                        .mxfp4_decode = decode_mxfp4,
                                        .mxfp8_decode = decode_mxfp8,
                                        .nvfp4_decode = decode_nvfp4,
                                        .e4m3_decode = decode_e4m3};

}  // namespace nibble
