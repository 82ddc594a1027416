// Weights in blocks by inputs in eight bits, by AVX2: a lane is a step of one row, eight steps a group, and
// keeps its total to the end of the row. A group of MXFP4 takes some 70 instructions for one input, of Q8 90.
#include <algorithm>

#include "ops/linear/int8_inputs.h"
#include "ops/linear/step_groups256.h"

namespace nibble {
namespace {

constexpr int inputs_at_once = 16;  // that share a decoding

// A format's decoder turns a group's bytes into eight registers (read), and those with an input's codes into
// the sums of the steps.
struct Mxfp4Codes {
  static constexpr int step_bytes = mxfp4_block_bytes;
  static constexpr bool scaled = true;
  // Products are of an unsigned and a signed byte.
  static_assert(int8_mxfp4_added == 12);
  __m256i doubles =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

  NIBBLE_AVX2 Mxfp4Codes() {}
  NIBBLE_AVX2 void read(const std::uint8_t* codes, __m256i (&words)[8]) const {
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + pair);
      words[2 * pair] = _mm256_shuffle_epi8(doubles, Mxfp4Bytes::lower(bytes));
      words[2 * pair + 1] = _mm256_shuffle_epi8(doubles, Mxfp4Bytes::upper(bytes));
    }
  }
  NIBBLE_AVX2 __m256i sums(const __m256i (&words)[8], const Int8Group& input) const {
    const __m256i* const codes = reinterpret_cast<const __m256i*>(input.codes);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[4];  // of steps, a half each
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i even = _mm256_maddubs_epi16(words[2 * i], _mm256_load_si256(codes + 2 * i));
      const __m256i odd = _mm256_maddubs_epi16(words[2 * i + 1], _mm256_load_si256(codes + 2 * i + 1));
      pairs[i] = _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones);
    }
    const __m256i low = _mm256_hadd_epi32(pairs[0], pairs[1]), high = _mm256_hadd_epi32(pairs[2], pairs[3]);
    const __m256i sums = _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(low, high), order);
    return _mm256_sub_epi32(sums, _mm256_load_si256(reinterpret_cast<const __m256i*>(input.excess)));
  }
};

struct Q8Codes {
  static constexpr int step_bytes = q8_block;
  static constexpr bool scaled = true;

  NIBBLE_AVX2 void read(const std::uint8_t* codes, __m256i (&words)[8]) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) words[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + i);
  }
  NIBBLE_AVX2 __m256i sums(const __m256i (&words)[8], const Int8Group& input) const {
    const __m256i* const codes = reinterpret_cast<const __m256i*>(input.codes);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i steps[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      // A weight's sign goes to the input, which has no -128.
      const __m256i signed_codes = _mm256_sign_epi8(_mm256_load_si256(codes + i), words[i]);
      steps[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(words[i]), signed_codes), ones);
    }
    const __m256i a =
        _mm256_hadd_epi32(_mm256_hadd_epi32(steps[0], steps[1]), _mm256_hadd_epi32(steps[2], steps[3]));
    const __m256i b =
        _mm256_hadd_epi32(_mm256_hadd_epi32(steps[4], steps[5]), _mm256_hadd_epi32(steps[6], steps[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
};

// One group of a row by `count` inputs: adds the steps' sums to the totals, a lane each.
template <class Codes>
NIBBLE_AVX2 inline void add_group(const Codes& decoder, const std::uint8_t* codes, const std::uint8_t* scales,
                                  const Int8Group* inputs, int count, __m256* totals) {
  __m256i words[8];
  decoder.read(codes, words);
  const GroupScales scale(scales);
  for (int i = 0; i < count; ++i) {
    const __m256 sum =
        _mm256_mul_ps(_mm256_cvtepi32_ps(decoder.sums(words, inputs[i])), _mm256_load_ps(inputs[i].scales));
    totals[i] = _mm256_add_ps(
        totals[i], scale.extreme ? scaled_with_care(sum, scale.bytes) : _mm256_mul_ps(sum, scale.factors));
  }
}

NIBBLE_AVX2 inline float add_lanes(__m256 totals) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(totals), _mm256_extractf128_ps(totals, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The totals of a row with `count` inputs, group g of which begins at inputs + g * n.
template <class Codes>
NIBBLE_AVX2 inline void multiply_row(const Codes& decoder, const StepRows& matrix, std::int64_t row,
                                     const Int8Group* inputs, int n, int count, Ahead& ahead,
                                     __m256* totals) {
  const int steps = static_cast<int>(matrix.row_steps), whole = steps / group_steps;
  const std::uint8_t* codes = matrix.codes + row * matrix.row_steps * Codes::step_bytes;
  const std::uint8_t* scales = matrix.scales + row * matrix.row_steps;
  for (int i = 0; i < count; ++i) totals[i] = _mm256_setzero_ps();
  for (int g = 0; g < whole; ++g, inputs += n) {
    ahead.ask_for<Codes, group_steps>();
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
  const Int8Group* const groups = reinterpret_cast<const Int8Group*>(inputs.prepared);
  const int n = inputs.rows.count;
  TileTotals totals[inputs_at_once];
  __m256 lanes[inputs_at_once];
  const Codes decoder;
  Ahead(matrix, begin * matrix.row_steps, Codes::step_bytes).ask_for_all<Codes, group_steps>(steps_ahead);
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    for (int first = 0; first < n; first += inputs_at_once) {
      const int count = std::min(inputs_at_once, n - first);
      Ahead ahead(matrix, row * matrix.row_steps + steps_ahead, Codes::step_bytes);
      for (int r = 0; r < rows; ++r) {
        // One input has a loop of its own, so that its total stays in a register.
        if (count == 1) {
          multiply_row(decoder, matrix, row + r, groups + first, n, 1, ahead, lanes);
        } else {
          multiply_row(decoder, matrix, row + r, groups + first, n, count, ahead, lanes);
        }
        for (int i = 0; i < count; ++i) totals[i][r] = add_lanes(lanes[i]);
      }
      for (int i = 0; i < count; ++i) store(row, first + i, totals[i]);
    }
  }
}

}  // namespace

void avx2_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                        const TotalsSink& store) {
  if (const auto* mxfp4 = std::get_if<Mxfp4Checkpoint>(&matrix)) {
    multiply_rows_of<Mxfp4Codes>(steps_of(*mxfp4), begin, end, inputs, store);
  } else if (const auto* q8 = std::get_if<Q8Matrix>(&matrix)) {
    multiply_rows_of<Q8Codes>(steps_of(*q8), begin, end, inputs, store);
  }
}

}  // namespace nibble
