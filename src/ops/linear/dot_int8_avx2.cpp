// Weights in blocks by inputs in eight bits, by AVX2: a lane is a step of one row, eight steps a group, and
// keeps its total to the end of the row. Of MXFP4 an input takes some 20 instructions a group, of Q8 45, and
// the weights' words, transposed once for all inputs, some 35 and 30.
#include <algorithm>

#include "ops/linear/int8_inputs.h"
#include "ops/linear/step_groups256.h"

namespace nibble {
namespace {

constexpr int inputs_at_once = Int8Inputs::block;  // share a decoding, and fit the first-level cache

// A format's decoder turns a group of a row into words (read): codes[w] is word w of each step as Int8Group
// has it. And those with an input's codes into the sums of the steps (sums).
struct Mxfp4Codes {
  static constexpr int step_bytes = mxfp4_block_bytes;
  static constexpr bool scaled = true;
  // Products are of an unsigned and a signed byte.
  static_assert(int8_mxfp4_added == 12);
  __m256i doubles =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

  NIBBLE_AVX2 Mxfp4Codes() {}
  NIBBLE_AVX2 void read(const std::uint8_t* from, __m256i (&codes)[8]) const {
    __m256i steps[4], words[4];  // two steps each
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) steps[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
    transpose_halves(steps, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      codes[2 * i] = _mm256_shuffle_epi8(doubles, Mxfp4Bytes::lower(words[i]));
      codes[2 * i + 1] = _mm256_shuffle_epi8(doubles, Mxfp4Bytes::upper(words[i]));
    }
  }
  // Pairs of products stay within 24 * 127 * 2 = 6,096, so that four of them fit sixteen bits.
  NIBBLE_AVX2 static __m256i sums(const __m256i (&codes)[8], const Int8Group& input) {
    const __m256i* const x = reinterpret_cast<const __m256i*>(input.codes);
    __m256i fours[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i pairs[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        pairs[i] = _mm256_maddubs_epi16(codes[4 * half + i], _mm256_load_si256(x + 4 * half + i));
      fours[half] = _mm256_madd_epi16(
          _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3])),
          _mm256_set1_epi16(1));
    }
    const __m256i start = _mm256_load_si256(reinterpret_cast<const __m256i*>(input.start));
    return _mm256_add_epi32(_mm256_add_epi32(fours[0], start), fours[1]);
  }
};

struct Q8Codes {
  static constexpr int step_bytes = q8_block;
  static constexpr bool scaled = true;

  NIBBLE_AVX2 void read(const std::uint8_t* from, __m256i (&codes)[8]) const {
    __m256i lower[4], upper[4], words[4];  // sixteen k each, of two steps
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      lower[i] = two_parts(from + 64 * i, from + 64 * i + 32);
      upper[i] = two_parts(from + 64 * i + 16, from + 64 * i + 48);
    }
    transpose_halves(lower, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) codes[i] = words[i];
    transpose_halves(upper, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) codes[4 + i] = words[i];
  }
  NIBBLE_AVX2 static __m256i sums(const __m256i (&codes)[8], const Int8Group& input) {
    const __m256i* const x = reinterpret_cast<const __m256i*>(input.codes);
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      // A weight's sign goes to the input, which has no -128: two products of 128 * 127 fit sixteen bits.
      const __m256i signed_codes = _mm256_sign_epi8(_mm256_load_si256(x + i), codes[i]);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[i]), signed_codes);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }
};

// One group of a row by `count` inputs: adds the steps' sums to the totals, a lane each.
template <class Codes>
NIBBLE_AVX2 inline void add_group(const Codes& decoder, const std::uint8_t* codes, const std::uint8_t* scales,
                                  const Int8Group* inputs, int count, __m256* totals) {
  __m256i words[8];
  decoder.read(codes, words);
  const GroupScales scale(_mm_shuffle_epi8(
      eight_at(scales), _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1)));
  for (int i = 0; i < count; ++i) {
    const __m256 sum =
        _mm256_mul_ps(_mm256_cvtepi32_ps(decoder.sums(words, inputs[i])), _mm256_load_ps(inputs[i].scales));
    totals[i] = _mm256_add_ps(
        totals[i], scale.extreme ? scaled_with_care(sum, scale.bytes) : _mm256_mul_ps(sum, scale.factors));
  }
}

// The total of a row, from those of its places.
NIBBLE_AVX2 inline float add_places(__m256 lanes) {
  const __m256 four = _mm256_add_ps(lanes, _mm256_permute_ps(lanes, 0x4e));
  const __m256 two = _mm256_add_ps(four, _mm256_permute_ps(four, 0xb1));
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
}

// The totals of a row with a block of `count` inputs.
template <class Codes>
NIBBLE_AVX2 inline void multiply_row(const Codes& decoder, const StepRows& matrix, std::int64_t row,
                                     const Int8Group* inputs, int count, Ahead* ahead, __m256* totals) {
  const int steps = static_cast<int>(matrix.row_steps), whole = steps / group_steps;
  const std::uint8_t* codes = matrix.codes + row * matrix.row_steps * Codes::step_bytes;
  const std::uint8_t* scales = matrix.scales + row * matrix.row_steps;
  for (int i = 0; i < count; ++i) totals[i] = _mm256_setzero_ps();
  for (int g = 0; g < whole; ++g, inputs += count) {
    if (ahead != nullptr) ahead->ask_for<Codes, group_steps>();
    add_group(decoder, codes, scales, inputs, count, totals);
    codes += group_steps * Codes::step_bytes;
    scales += group_steps;
  }
  if (whole * group_steps < steps) {
    const LastGroup<Codes> last(codes, scales, steps - whole * group_steps);
    add_group(decoder, last.codes, last.scales, inputs, count, totals);
  }
}

template <class Codes>
NIBBLE_AVX2 void multiply_rows_of(const StepRows& matrix, int begin, int end, const DotInputs& inputs,
                                  const TotalsSink& store) {
  constexpr int steps_ahead = group_bytes_ahead / Codes::step_bytes;
  const Int8Inputs prepared(inputs);
  TileTotals totals[inputs_at_once];
  __m256 lanes[inputs_at_once];
  const Codes decoder;
  Ahead(matrix, begin * matrix.row_steps, Codes::step_bytes).ask_for_all<Codes, group_steps>(steps_ahead);
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    Ahead ahead(matrix, row * matrix.row_steps + steps_ahead, Codes::step_bytes);
    for (int first = 0; first < prepared.count; first += inputs_at_once) {
      const int count = prepared.block_size(first);
      const Int8Group* const groups = prepared.group(first, 0);
      Ahead* const ask = first == 0 ? &ahead : nullptr;
      for (int r = 0; r < rows; ++r) {
        // One input has a loop of its own, so that its total stays in a register.
        if (count == 1) {
          multiply_row(decoder, matrix, row + r, groups, 1, ask, lanes);
        } else {
          multiply_row(decoder, matrix, row + r, groups, count, ask, lanes);
        }
        for (int i = 0; i < count; ++i) totals[i][r] = add_places(lanes[i]);
      }
      for (int i = 0; i < count; ++i) store(row, first + i, totals[i]);
    }
  }
}

}  // namespace

void avx2_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                        const TotalsSink& store) {
  if (const auto* mxfp4 = std::get_if<Mxfp4Checkpoint>(&matrix)) {
    multiply_rows_of<Mxfp4Codes>(steps_of(*mxfp4, inputs.lines), begin, end, inputs, store);
  } else if (const auto* q8 = std::get_if<Q8Matrix>(&matrix)) {
    multiply_rows_of<Q8Codes>(steps_of(*q8, inputs.lines), begin, end, inputs, store);
  }
}

}  // namespace nibble
