// Small pieces that the kernels share which want AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/linear/dot_tile.h"

// The target goes on each function, not on the file: a file compiled for AVX2 would also emit inline
// functions of headers for AVX2, and the linker might pick those for machines without it.
#define NIBBLE_AVX2 __attribute__((target("avx2,fma")))

namespace nibble {

// Eight registers of eight words, transposed: out[c] holds word c of each.
NIBBLE_AVX2 inline void transpose_words(const __m256i (&rows)[8], __m256i (&out)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// Four registers of four words in each half, transposed within the halves.
NIBBLE_AVX2 inline void transpose_halves(const __m256i (&rows)[4], __m256i (&words)[4]) {
  const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  words[0] = _mm256_unpacklo_epi64(a, c);
  words[1] = _mm256_unpackhi_epi64(a, c);
  words[2] = _mm256_unpacklo_epi64(b, d);
  words[3] = _mm256_unpackhi_epi64(b, d);
}

// 16 bytes from each of two places.
NIBBLE_AVX2 inline __m256i two_parts(const std::uint8_t* low, const std::uint8_t* high) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

// Pairs of bfloat16 as floats.
NIBBLE_AVX2 inline __m256 low_halves(__m256i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
NIBBLE_AVX2 inline __m256 high_halves(__m256i words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// A code's bfloat16 is two bytes, each looked up by the code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
struct Mxfp4Bytes {
  __m256i low = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, char(0x80), char(0xc0), 0, 0x40, char(0x80),
                                                          char(0xc0), 0, 0, char(0x80), char(0xc0), 0, 0x40,
                                                          char(0x80), char(0xc0)));
  __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                           char(0x80), char(0xbf), char(0xbf), char(0xbf),
                                                           char(0xc0), char(0xc0), char(0xc0), char(0xc0)));
  NIBBLE_AVX2 Mxfp4Bytes() {}

  // Of codes, a byte each: of bytes 0 .. 7 of each half (first), of bytes 8 .. 15 (second).
  NIBBLE_AVX2 void look_up(__m256i codes, __m256i& first, __m256i& second) const {
    const __m256i lows = _mm256_shuffle_epi8(low, codes), highs = _mm256_shuffle_epi8(high, codes);
    first = _mm256_unpacklo_epi8(lows, highs);
    second = _mm256_unpackhi_epi8(lows, highs);
  }
  // The codes in the lower and in the upper halves of bytes.
  NIBBLE_AVX2 static __m256i lower(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
  NIBBLE_AVX2 static __m256i upper(__m256i bytes) { return lower(_mm256_srli_epi16(bytes, 4)); }
};

}  // namespace nibble
