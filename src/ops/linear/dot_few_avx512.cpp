// A lane is a step of one row, sixteen steps a group, so weights come in as they lie in memory, one row after
// the other. The steps' sums of a tile of rows are then transposed and added in order, a lane a row.
//
// For one input the limit is how many 512-bit instructions a processor starts: of MXFP4 a group of 272 bytes
// takes 16 products of pairs, 28 to look its codes up, 8 to turn blocks into lanes and 7 for scales and sums.
#include "ops/linear/dot_few_avx512.h"

#include <algorithm>

#include "ops/linear/block_groups512.h"
#include "ops/linear/chain_products512.h"

namespace nibble {
namespace {

// More inputs make it worth to bring rows into lanes, whose sums need no transposing.
constexpr int few_inputs = 3;

constexpr int group_steps = 16;

// A group of an input: word (lane) of register j is the j-th pair of the lane's step. Group g of input i of n
// is the one at g * n + i.
template <class Products>
struct alignas(64) InputGroup {
  typename Products::Stored pairs[16];
};

constexpr int groups_of(int cols) { return (cols + group_steps * dot_step - 1) / (group_steps * dot_step); }

template <class Products>
NIBBLE_512 void pack_groups(const float* x, int steps, InputGroup<Products>* groups, int stride) {
  const __m512i order = pair_order_words();
  for (int first = 0; first < steps; first += group_steps, groups += stride) {
    __m512i lanes[16];
    for (int lane = 0; lane < 16; ++lane)
      lanes[lane] =
          first + lane < steps ? bf16_step(x + (first + lane) * dot_step, order) : _mm512_setzero_si512();
    transpose_words(lanes);
    for (int j = 0; j < 16; ++j) Products::store(groups->pairs[j], lanes[j]);
  }
}

// A step's chain is eight products that wait for one another, and a processor looks hardly further ahead than
// a group: rows or inputs side by side keep it busy. More than these do not fit the registers.
template <class Decoder>
constexpr int rows_at_once(int inputs) {
  if (Decoder::word_count > 8) return 1;
  return inputs == 1 ? 16 / Decoder::word_count : 2;
}

// Of rows that come one by one a processor can be led.
template <class Decoder>
constexpr int led_apart = rows_at_once<Decoder>(1) == 1 ? over_pages : each_line;

constexpr int bytes_ahead = 16384;  // into the second-level cache

// Groups of a row before those of the next rows, as far as their sums have room in the caches.
constexpr int groups_at_once = 8;

// The sums of a group's steps, of each row with each input.
template <int inputs>
using GroupSums = float[inputs][tile_rows][group_steps];

// Steps past the last one read as zeros.
template <class Decoder, bool full>
NIBBLE_512_INLINE void read_group(const Decoder& decoder, const std::uint8_t* codes, int steps,
                                  __m512i* words) {
  __m512i lines[Decoder::line_count];
#pragma GCC unroll 16
  for (int i = 0; i < Decoder::line_count; ++i) {
    if constexpr (full) {
      lines[i] = _mm512_loadu_si512(codes + 64 * i);
    } else {
      const int left = std::clamp(steps * Decoder::step_bytes / 4 - 16 * i, 0, 16);
      lines[i] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << left) - 1), codes + 64 * i);
    }
  }
  decoder.read(lines, words);
}

// The sums of one group's steps of `rows` rows with each input.
template <class Products, class Decoder, int rows, int count, bool full>
NIBBLE_512_INLINE void multiply_group(const Decoder& decoder, const StepRows& matrix,
                                      const std::uint8_t* codes, const std::uint8_t* scales, int steps,
                                      const InputGroup<Products>* inputs, float (*sums)[group_steps]) {
  __m512i words[rows][Decoder::word_count];
  __m512 even[rows][count], odd[rows][count];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    read_group<Decoder, full>(decoder, codes + r * matrix.row_steps * Decoder::step_bytes, steps, words[r]);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) even[r][i] = odd[r][i] = _mm512_setzero_ps();
  }
#pragma GCC unroll 8
  for (int half = 0; half < 8; ++half) {
    __m512i pairs[rows][2];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) decoder.pairs(words[r], half / 2, half % 2, pairs[r]);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const auto input = Products::load(inputs[i].pairs[2 * half + j]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          __m512& chain = half % 2 == 0 ? even[r][i] : odd[r][i];
          chain = Products::add(chain, Products::of(pairs[r][j]), input);
        }
      }
    }
  }
  if constexpr (!Decoder::scaled) {
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i)
        _mm512_store_ps(sums[i * tile_rows + r], _mm512_add_ps(even[r][i], odd[r][i]));
    }
    return;
  }
  __m128i scale[rows], extremes = _mm_setzero_si128();  // 0 and 255 become the largest
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    const std::uint8_t* at = scales + r * matrix.row_steps;
    scale[r] = full ? part_at(at) : read_scales(at, steps);
    extremes = _mm_max_epu8(extremes, _mm_sub_epi8(scale[r], _mm_set1_epi8(1)));
  }
  const bool plain = _mm_cmpge_epu8_mask(extremes, _mm_set1_epi8(static_cast<char>(254))) == 0;
  // What takes care is apart, so that nothing waits in memory for its calls.
  if (!plain) {
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < count; ++i)
        _mm512_store_ps(sums[i * tile_rows + r],
                        scaled_with_care(_mm512_add_ps(even[r][i], odd[r][i]), scale[r]));
    }
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    const __m512 factors = plain_factors(scale[r]);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      _mm512_store_ps(sums[i * tile_rows + r], _mm512_mul_ps(_mm512_add_ps(even[r][i], odd[r][i]), factors));
    }
  }
}

// Groups [from, to) of `rows` rows from `row` on; the first one is row `at` of the sums.
template <class Products, class Decoder, int rows, int count>
NIBBLE_512_INLINE void multiply_groups(const Decoder& decoder, const StepRows& matrix, std::int64_t row,
                                       int from, int to, Ahead& ahead, const InputGroup<Products>* inputs,
                                       GroupSums<count>* sums, int at) {
  const int steps = static_cast<int>(matrix.row_steps);
  for (int g = from; g < to; ++g) {
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) ahead.template ask_for<Decoder, group_steps, led_apart<Decoder>>();
    const std::int64_t first = row * matrix.row_steps + g * group_steps;
    const std::uint8_t* codes = matrix.codes + first * Decoder::step_bytes;
    const std::uint8_t* scales = Decoder::scaled ? matrix.scales + first : nullptr;
    const int left = std::min(group_steps, steps - g * group_steps);
    float(*out)[group_steps] = sums[g - from][0] + at;
    if (left == group_steps) {
      multiply_group<Products, Decoder, rows, count, true>(decoder, matrix, codes, scales, left,
                                                           inputs + g * count, out);
    } else {
      multiply_group<Products, Decoder, rows, count, false>(decoder, matrix, codes, scales, left,
                                                            inputs + g * count, out);
    }
  }
}

// Adds the first `steps` steps' sums to the rows' total, in order.
NIBBLE_512_INLINE __m512 add_steps(__m512 total, const float (*sums)[group_steps], int steps) {
  __m512i lanes[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) lanes[r] = _mm512_load_si512(sums[r]);
  transpose_words(lanes);
#pragma GCC unroll 16
  for (int step = 0; step < 16; ++step) {
    if (step < steps) total = _mm512_add_ps(total, _mm512_castsi512_ps(lanes[step]));
  }
  return total;
}

template <class Products, class Decoder, int count>
NIBBLE_512 void multiply_few(const StepRows& matrix, int begin, int end, const std::byte* prepared,
                             const TotalsSink& store) {
  constexpr int at_once = rows_at_once<Decoder>(count);
  const InputGroup<Products>* inputs = reinterpret_cast<const InputGroup<Products>*>(prepared);
  const int steps = static_cast<int>(matrix.row_steps), groups = groups_of(steps * dot_step);
  alignas(64) GroupSums<count> sums[groups_at_once];
  alignas(64) TileTotals totals;
  const Decoder decoder;
  const int steps_ahead = bytes_ahead_of(matrix.lines, bytes_ahead) / Decoder::step_bytes;
  Ahead(matrix, begin * matrix.row_steps, Decoder::step_bytes).ask_for_all<Decoder, group_steps>(steps_ahead);
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    Ahead ahead(matrix, row * matrix.row_steps + steps_ahead, Decoder::step_bytes);
    __m512 total[count];
    for (__m512& each : total) each = _mm512_setzero_ps();
    for (int from = 0; from < groups; from += groups_at_once) {
      const int to = std::min(groups, from + groups_at_once);
      int r = 0;
      for (; r + at_once <= rows; r += at_once)
        multiply_groups<Products, Decoder, at_once, count>(decoder, matrix, row + r, from, to, ahead, inputs,
                                                           sums, r);
      for (; r < rows; ++r)
        multiply_groups<Products, Decoder, 1, count>(decoder, matrix, row + r, from, to, ahead, inputs, sums,
                                                     r);
      for (int g = from; g < to; ++g) {
        const int left = std::min(group_steps, steps - g * group_steps);
        for (int i = 0; i < count; ++i) total[i] = add_steps(total[i], sums[g - from][i], left);
      }
    }
    for (int i = 0; i < count; ++i) {
      _mm512_store_ps(totals, total[i]);
      store(row, i, totals);
    }
  }
}

template <class Matrix>
using DecoderFor = typename DecoderOf<std::remove_cvref_t<Matrix>>::Type;

}  // namespace

bool are_few_inputs(int count) { return count <= few_inputs; }

template <class Products>
void avx512_few_prepare(const DotInputs& inputs, int begin, int end) {
  for (int i = begin; i < end; ++i)
    pack_groups<Products>(inputs.rows[i], inputs.rows.cols / dot_step,
                          reinterpret_cast<InputGroup<Products>*>(inputs.prepared) + i, inputs.rows.count);
}

template <class Products>
void avx512_few_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                         const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        using Decoder = DecoderFor<decltype(each)>;
        with_count<1, few_inputs>(inputs.rows.count, [&](auto count) {
          multiply_few<Products, Decoder, count>(steps_of(each, inputs.lines), begin, end, inputs.prepared,
                                                 store);
        });
      },
      matrix);
}

template void avx512_few_prepare<PairProducts>(const DotInputs&, int, int);
template void avx512_few_prepare<SingleProducts>(const DotInputs&, int, int);
template void avx512_few_multiply<PairProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                const TotalsSink&);
template void avx512_few_multiply<SingleProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                  const TotalsSink&);

}  // namespace nibble
