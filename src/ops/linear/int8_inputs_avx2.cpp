#include <limits>

#include "ops/linear/int8_inputs.h"
#include "ops/linear/simd256.h"

namespace nibble {
namespace {

NIBBLE_AVX2 inline __m256 magnitude_of(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

NIBBLE_AVX2 inline float largest_lane(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

NIBBLE_AVX2 inline std::int32_t add_lanes(__m256i x) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// A step's codes, in order of k, and its scale but for the format's factor.
struct Step {
  __m256i codes;
  float largest;
};

NIBBLE_AVX2 inline Step encode_step(const float* x) {
  __m256 parts[4], largest = _mm256_setzero_ps(), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 part = _mm256_loadu_ps(x + 8 * i), magnitude = magnitude_of(part);
    finite = _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, _mm256_set1_ps(infinite_bf16_input), _CMP_LT_OQ));
    const __m256 kept = _mm256_cmp_ps(magnitude, _mm256_set1_ps(smallest_bf16_input), _CMP_GE_OQ);
    parts[i] = _mm256_and_ps(part, kept);
    largest = _mm256_max_ps(largest, _mm256_and_ps(magnitude, kept));
  }
  if (_mm256_movemask_ps(finite) != 0xff)
    return {_mm256_setzero_si256(), std::numeric_limits<float>::quiet_NaN()};
  const float most = largest_lane(largest);
  if (most == 0) return {_mm256_setzero_si256(), 0.0f};
  const __m256 to_codes = _mm256_set1_ps(127.0f / most);
  __m256i codes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], to_codes));
  // Packing keeps to the halves of registers: fours of codes come out as 0, 2, 4, 6, 1, 3, 5, 7.
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
  return {_mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), most};
}

}  // namespace

NIBBLE_AVX2 void avx2_encode_int8_group(const DenseMatrix& matrix, const float* x, int steps,
                                        Int8Group& group) {
  const bool mxfp4 = std::holds_alternative<Mxfp4Checkpoint>(matrix);
  // The even ones of eight k before the odd ones.
  const __m256i halves =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  __m256i rows[Int8Group::steps], words[Int8Group::words];
  for (int step = 0; step < Int8Group::steps; ++step) {
    const Step encoded = step < steps ? encode_step(x + step * dot_step) : Step{_mm256_setzero_si256(), 0.0f};
    const int lane = int8_lane(step);
    rows[lane] = mxfp4 ? _mm256_shuffle_epi8(encoded.codes, halves) : encoded.codes;
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), encoded.codes);
    const std::int32_t sum = add_lanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    group.scales[lane] = encoded.largest / (mxfp4 ? 254.0f : 127.0f);  // weights of MXFP4 count in halves
    group.start[lane] = -sum * (mxfp4 ? int8_mxfp4_added : int8_q8_added);
  }
  transpose_words(rows, words);
  for (int word = 0; word < Int8Group::words; ++word)
    _mm256_store_si256(reinterpret_cast<__m256i*>(group.codes[word]), words[word]);
}

void avx2_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  prepare_int8_inputs(avx2_encode_int8_group, matrix, inputs, begin, end);
}

}  // namespace nibble
