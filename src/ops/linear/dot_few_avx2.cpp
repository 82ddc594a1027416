// A lane is a step of one row, eight steps a group, so weights come in as they lie in memory, one row after
// the other. The steps' sums of a tile of rows are then transposed and added in order, a lane a row.
//
// For one input the limit is how many 256-bit instructions a processor starts. A group, 256 weights, takes 32
// products and some 90 to decode and bring into lanes, whatever the format: of MXFP4 for 136 bytes.
#include "ops/linear/dot_few_avx2.h"

#include <algorithm>

#include "ops/linear/float_inputs.h"
#include "ops/linear/step_groups256.h"

namespace nibble {
namespace {

// As many are multiplied at once; twice as many in two batches, the second of which finds the weights in the
// second-level cache.
constexpr int most_at_once = 4, most_few_inputs = 2 * most_at_once;
constexpr int rows_a_batch = 64;

constexpr int batches_of(int inputs) { return inputs > most_at_once ? 2 : 1; }

// Inputs [first, first + count) of `inputs`, of equal batches.
struct Batch {
  int first, count;

  Batch(int inputs, int index) {
    const int batches = batches_of(inputs);
    first = (inputs * index + batches - 1) / batches;
    count = (inputs * (index + 1) + batches - 1) / batches - first;
  }
};

// A group of an input, a lane a step. Group g of input i of a batch of n is the one at g * n + i.
struct alignas(32) InputGroup {
  float values[dot_step][group_steps];
};

// A format's decoder turns eight steps' bytes into words (read), and words part by part, eight k each, into
// the floats of each k, times weight_factor (for_eight). Those of one parity are visited in order, and right
// after they are made: sixteen registers hold no more.
struct Mxfp4Lanes {
  static constexpr int step_bytes = mxfp4_block_bytes, word_count = 4;
  static constexpr bool scaled = true;
  static constexpr float weight_factor = 1;
  Mxfp4Bytes lookup;

  NIBBLE_AVX2 Mxfp4Lanes() {}
  // Words of two bytes, that is, of four k: word w has k = 8w .. 8w + 3 of lanes 0 .. 3 (low half) and 4 .. 7
  // (high half), then k = 8w + 4 .. 8w + 7 of those.
  NIBBLE_AVX2 void read(const std::uint8_t* codes, __m256i (&words)[word_count]) const {
    __m256i steps[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) steps[i] = two_parts(codes + i * step_bytes, codes + (i + 4) * step_bytes);
    const __m256i a = _mm256_unpacklo_epi16(steps[0], steps[1]),
                  b = _mm256_unpackhi_epi16(steps[0], steps[1]);
    const __m256i c = _mm256_unpacklo_epi16(steps[2], steps[3]),
                  d = _mm256_unpackhi_epi16(steps[2], steps[3]);
    words[0] = _mm256_unpacklo_epi32(a, c);
    words[1] = _mm256_unpackhi_epi32(a, c);
    words[2] = _mm256_unpacklo_epi32(b, d);
    words[3] = _mm256_unpackhi_epi32(b, d);
  }
  template <class Visit>
  NIBBLE_AVX2 void for_eight(const __m256i (&words)[word_count], int part, const Visit& visit) const {
    for_four(Mxfp4Bytes::lower(words[part]), 0, visit);
    for_four(Mxfp4Bytes::upper(words[part]), 1, visit);
  }

 private:
  template <class Visit>
  NIBBLE_AVX2 void for_four(__m256i codes, int parity, const Visit& visit) const {
    __m256i first, second;
    lookup.look_up(codes, first, second);
    visit(parity, low_halves(first));
    visit(parity + 2, high_halves(first));
    visit(parity + 4, low_halves(second));
    visit(parity + 6, high_halves(second));
  }
};

struct Bf16Lanes {
  static constexpr int step_bytes = 64, word_count = 16;
  static constexpr bool scaled = false;
  static constexpr float weight_factor = 1;

  NIBBLE_AVX2 void read(const std::uint8_t* codes, __m256i (&words)[word_count]) const {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      __m256i steps[4], four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        steps[i] = two_parts(codes + i * step_bytes + 16 * part, codes + (i + 4) * step_bytes + 16 * part);
      }
      transpose_halves(steps, four);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) words[4 * part + i] = four[i];
    }
  }
  template <class Visit>
  NIBBLE_AVX2 void for_eight(const __m256i (&words)[word_count], int part, const Visit& visit) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      visit(2 * i, low_halves(words[4 * part + i]));
      visit(2 * i + 1, high_halves(words[4 * part + i]));
    }
  }
};

struct Q8Lanes {
  static constexpr int step_bytes = q8_block, word_count = 8;
  static constexpr bool scaled = true;
  // A byte goes to the top of its lane, and the rest of the lane is zeros.
  static constexpr float weight_factor = 0x1p24f;
  __m256i tops[4];

  NIBBLE_AVX2 Q8Lanes() {
    for (int i = 0; i < 4; ++i) {
      alignas(32) std::int8_t bytes[32];
      for (int b = 0; b < 32; ++b) bytes[b] = static_cast<std::int8_t>(b % 4 == 3 ? 4 * i + b % 16 / 4 : -1);
      tops[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    }
  }
  // Word w has the bytes of k = 4w of lanes 0 .. 3 (low half) and 4 .. 7 (high half), then those of the next
  // three k.
  NIBBLE_AVX2 void read(const std::uint8_t* codes, __m256i (&words)[word_count]) const {
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      __m256i steps[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        steps[i] = two_parts(codes + i * step_bytes + 16 * part, codes + (i + 4) * step_bytes + 16 * part);
      }
      const __m256i a = _mm256_unpacklo_epi8(steps[0], steps[1]),
                    b = _mm256_unpackhi_epi8(steps[0], steps[1]);
      const __m256i c = _mm256_unpacklo_epi8(steps[2], steps[3]),
                    d = _mm256_unpackhi_epi8(steps[2], steps[3]);
      words[4 * part] = _mm256_unpacklo_epi16(a, c);
      words[4 * part + 1] = _mm256_unpackhi_epi16(a, c);
      words[4 * part + 2] = _mm256_unpacklo_epi16(b, d);
      words[4 * part + 3] = _mm256_unpackhi_epi16(b, d);
    }
  }
  template <class Visit>
  NIBBLE_AVX2 void for_eight(const __m256i (&words)[word_count], int part, const Visit& visit) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      visit(i, _mm256_cvtepi32_ps(_mm256_shuffle_epi8(words[2 * part + i / 4], tops[i % 4])));
  }
};

template <class Matrix>
struct LanesOf;
template <>
struct LanesOf<Bf16Matrix> {
  using Type = Bf16Lanes;
};
template <>
struct LanesOf<Q8Matrix> {
  using Type = Q8Lanes;
};
template <>
struct LanesOf<Mxfp4Checkpoint> {
  using Type = Mxfp4Lanes;
};
template <class Matrix>
using LanesFor = typename LanesOf<std::remove_cvref_t<Matrix>>::Type;

// What the weights are too large by is taken from the inputs, which leaves every product as it is: their
// bounds are far from those of a float.
NIBBLE_AVX2 void pack_groups(const float* x, int steps, float factor, InputGroup* groups, int stride) {
  const __m256 factors = _mm256_set1_ps(factor), sign = _mm256_set1_ps(-0.0f);
  for (int first = 0; first < steps; first += group_steps, groups += stride) {
    for (int k = 0; k < dot_step; k += 8) {
      __m256i lanes[8], values[8];
      for (int lane = 0; lane < group_steps; ++lane) {
        lanes[lane] = _mm256_setzero_si256();
        if (first + lane >= steps) continue;
        const __m256 value = _mm256_loadu_ps(x + (first + lane) * dot_step + k);
        const __m256 magnitude = _mm256_andnot_ps(sign, value);
        const __m256 small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(smallest_bf16_input), _CMP_LT_OQ);
        const __m256 large = _mm256_cmp_ps(magnitude, _mm256_set1_ps(infinite_bf16_input), _CMP_GE_OQ);
        const __m256 infinity =
            _mm256_or_ps(_mm256_and_ps(value, sign), _mm256_set1_ps(std::numeric_limits<float>::infinity()));
        const __m256 bounded = _mm256_andnot_ps(small, _mm256_blendv_ps(value, infinity, large));
        lanes[lane] = _mm256_castps_si256(_mm256_mul_ps(bounded, factors));
      }
      transpose_words(lanes, values);
      for (int i = 0; i < 8; ++i)
        _mm256_store_si256(reinterpret_cast<__m256i*>(groups->values[k + i]), values[i]);
    }
  }
}

// A chain of a group is sixteen products that wait for one another: rows or inputs side by side keep a
// processor busy.
constexpr int rows_at_once(int inputs) { return inputs == 1 ? 2 : 1; }

// Groups of a row before those of the next rows, as far as their sums have room in the first-level cache.
constexpr int groups_at_once = 4;

// The sums of a group's steps, of each row with each input.
template <int inputs>
using GroupSums = float[inputs][tile_rows][group_steps];

// The sums of one group's steps of `rows` rows with each input.
template <class Lanes, int rows, int count>
NIBBLE_AVX2 inline void multiply_group(const Lanes& lanes, const std::uint8_t* const (&codes)[rows],
                                       const std::uint8_t* const (&scales)[rows], const InputGroup* inputs,
                                       float (*sums)[group_steps]) {
  __m256i words[rows][Lanes::word_count];
  __m256 even[rows][count], odd[rows][count];
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    lanes.read(codes[r], words[r]);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) even[r][i] = odd[r][i] = _mm256_setzero_ps();
  }
#pragma GCC unroll 4
  for (int part = 0; part < dot_step / 8; ++part) {
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      lanes.for_eight(
          words[r], part, [&](int k, __m256 weights) __attribute__((always_inline)) NIBBLE_AVX2 {
#pragma GCC unroll 4
            for (int i = 0; i < count; ++i) {
              __m256& chain = k % 2 == 0 ? even[r][i] : odd[r][i];
              chain = _mm256_fmadd_ps(weights, _mm256_load_ps(inputs[i].values[8 * part + k]), chain);
            }
          });
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    // All sums before a branch, behind which the compiler would compute them otherwise, from what it had to
    // put aside.
    __m256 sum[count];
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) sum[i] = _mm256_add_ps(even[r][i], odd[r][i]);
    if constexpr (!Lanes::scaled) {
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) _mm256_store_ps(sums[i * tile_rows + r], sum[i]);
    } else {
      const GroupScales scale(eight_at(scales[r]));
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i)
        _mm256_store_ps(sums[i * tile_rows + r], _mm256_mul_ps(sum[i], scale.factors));
      if (scale.extreme) {
        for (int i = 0; i < count; ++i)
          _mm256_store_ps(sums[i * tile_rows + r], scaled_with_care(sum[i], scale.bytes));
      }
    }
  }
}

// Groups [from, to) of `rows` rows from `row` on; the first one is row `at` of the sums.
template <class Lanes, int rows, int count>
NIBBLE_AVX2 inline void multiply_groups(const Lanes& lanes, const StepRows& matrix, std::int64_t row,
                                        int from, int to, Ahead* ahead, const InputGroup* inputs,
                                        GroupSums<count>* sums, int at) {
  const int steps = static_cast<int>(matrix.row_steps);
  for (int g = from; g < to; ++g) {
    const int left = std::min(group_steps, steps - g * group_steps);
    const std::uint8_t *codes[rows], *scales[rows];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      if (ahead != nullptr) ahead->template ask_for<Lanes, group_steps>();
      const std::int64_t first = (row + r) * matrix.row_steps + g * group_steps;
      codes[r] = matrix.codes + first * Lanes::step_bytes;
      scales[r] = Lanes::scaled ? matrix.scales + first : nullptr;
    }
    float(*out)[group_steps] = sums[g - from][0] + at;
    if (left == group_steps) {
      multiply_group<Lanes, rows, count>(lanes, codes, scales, inputs + g * count, out);
      continue;
    }
    for (int r = 0; r < rows; ++r) {
      const LastGroup<Lanes> last(codes[r], scales[r], left);
      multiply_group<Lanes, 1, count>(lanes, {last.codes}, {last.scales}, inputs + g * count, out + r);
    }
  }
}

// Adds the first `steps` steps' sums of eight rows to the rows' total, in order.
NIBBLE_AVX2 inline __m256 add_steps(__m256 total, const float (*sums)[group_steps], int steps) {
  __m256i rows[8], lanes[8];
  for (int r = 0; r < 8; ++r) rows[r] = _mm256_load_si256(reinterpret_cast<const __m256i*>(sums[r]));
  transpose_words(rows, lanes);
#pragma GCC unroll 8
  for (int step = 0; step < group_steps; ++step) {
    if (step < steps) total = _mm256_add_ps(total, _mm256_castsi256_ps(lanes[step]));
  }
  return total;
}

template <class Lanes>
constexpr int steps_ahead = group_bytes_ahead / Lanes::step_bytes;

// Rows [begin, end) by a batch, whose first input is input `first`; the first batch asks for weights ahead.
template <class Lanes, int count>
NIBBLE_AVX2 void multiply_batch(const StepRows& matrix, int begin, int end, const InputGroup* inputs,
                                int first, const TotalsSink& store) {
  constexpr int at_once = rows_at_once(count);
  const int steps = static_cast<int>(matrix.row_steps), groups = groups_of(steps);
  alignas(32) GroupSums<count> sums[groups_at_once];
  alignas(32) TileTotals totals[count];
  const Lanes lanes;
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    Ahead next(matrix, row * matrix.row_steps + steps_ahead<Lanes>, Lanes::step_bytes);
    Ahead* const ahead = first == 0 ? &next : nullptr;
    __m256 total[count][2];
    for (auto& each : total) each[0] = each[1] = _mm256_setzero_ps();
    for (int from = 0; from < groups; from += groups_at_once) {
      const int to = std::min(groups, from + groups_at_once);
      int r = 0;
      for (; r + at_once <= rows; r += at_once)
        multiply_groups<Lanes, at_once, count>(lanes, matrix, row + r, from, to, ahead, inputs, sums, r);
      for (; r < rows; ++r)
        multiply_groups<Lanes, 1, count>(lanes, matrix, row + r, from, to, ahead, inputs, sums, r);
      for (int g = from; g < to; ++g) {
        const int left = std::min(group_steps, steps - g * group_steps);
        for (int i = 0; i < count; ++i) {
          for (int half = 0; half < 2; ++half)
            total[i][half] = add_steps(total[i][half], sums[g - from][i] + 8 * half, left);
        }
      }
    }
    for (int i = 0; i < count; ++i) {
      for (int half = 0; half < 2; ++half) _mm256_store_ps(totals[i] + 8 * half, total[i][half]);
      store(row, first + i, totals[i]);
    }
  }
}

template <class Lanes>
void multiply_few(const StepRows& matrix, int begin, int end, const DotInputs& inputs,
                  const TotalsSink& store) {
  const int count = inputs.rows.count, groups = groups_of(static_cast<int>(matrix.row_steps));
  const int batches = batches_of(count), rows_at_a_time = batches > 1 ? rows_a_batch : end - begin;
  Ahead(matrix, begin * matrix.row_steps, Lanes::step_bytes)
      .ask_for_all<Lanes, group_steps>(steps_ahead<Lanes>);
  for (int row = begin; row < end; row += rows_at_a_time) {
    for (int index = 0; index < batches; ++index) {
      const Batch batch(count, index);
      const InputGroup* groups_at =
          reinterpret_cast<const InputGroup*>(inputs.prepared) + batch.first * groups;
      with_count<1, most_at_once>(batch.count, [&](auto inputs_of_batch) {
        multiply_batch<Lanes, inputs_of_batch>(matrix, row, std::min(end, row + rows_at_a_time), groups_at,
                                               batch.first, store);
      });
    }
  }
}

}  // namespace

bool avx2_takes_few(const DotInputs& inputs) {
  return inputs.rows.count <= most_few_inputs && inputs.values == InputValues::bf16 &&
         inputs.rows.cols % dot_step == 0;
}

void avx2_few_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  const float factor =
      std::visit([](const auto& each) { return 1 / LanesFor<decltype(each)>::weight_factor; }, matrix);
  const int steps = inputs.rows.cols / dot_step, count = inputs.rows.count;
  for (int i = begin; i < end; ++i) {
    const Batch batch(count, i < Batch(count, 0).count ? 0 : 1);
    InputGroup* const groups =
        reinterpret_cast<InputGroup*>(inputs.prepared) + batch.first * groups_of(steps) + (i - batch.first);
    pack_groups(inputs.rows[i], steps, factor, groups, batch.count);
  }
}

void avx2_few_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                       const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        multiply_few<LanesFor<decltype(each)>>(steps_of(each, inputs.lines), begin, end, inputs, store);
      },
      matrix);
}

}  // namespace nibble
