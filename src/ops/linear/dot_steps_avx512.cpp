#include "ops/linear/dot_steps_avx512.h"

#include <algorithm>
#include <array>

#include "ops/linear/block_groups512.h"
#include "ops/linear/dot_tile_avx512.h"

namespace nibble {
namespace {

// Ragged steps are left to the float kernels, and so is what is not bfloat16.
bool takes_floats(const DotInputs& inputs) {
  return inputs.values == InputValues::any_float || inputs.rows.cols % dot_step != 0;
}

// Up to this many inputs, weights are decoded on their way to the products; more make it worth to lay a tile
// of rows out first. That of bfloat16 is little more than a copy.
template <class Decoder>
constexpr int few_inputs = Decoder::scaled ? 8 : 1;

bool are_few(const DenseMatrix& matrix, int count) {
  return std::visit(
      [&](const auto& each) {
        return count <= few_inputs<typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type>;
      },
      matrix);
}

NIBBLE_512 inline __m512i pair_order_words() {
  alignas(64) std::uint16_t order[32];
  for (int w = 0; w < 32; ++w)
    order[w] = static_cast<std::uint16_t>(2 * (8 * (w / 8) + pair_order[w % 8]) + 1);
  return _mm512_load_si512(order);
}

// ---- Few inputs: a lane is a step of one row, sixteen steps a group, so weights come in as they lie in
// memory, one row after the other. The steps' sums of a tile of rows are then transposed and added in order,
// a lane a row. Lane 4b + r has the group's step 4r + b: that is how transpose_parts leaves four loads of
// four blocks.
constexpr int group_steps = 16;

// A group of an input: word (lane) of register j is the j-th pair of the lane's step.
struct alignas(64) InputGroup {
  std::uint32_t pairs[16][group_steps];
};

constexpr int groups_of(int cols) { return (cols + group_steps * dot_step - 1) / (group_steps * dot_step); }

NIBBLE_512 void pack_groups(const float* x, int steps, InputGroup* groups) {
  const __m512i order = pair_order_words();
  for (int first = 0; first < steps; first += group_steps, ++groups) {
    __m512i lanes[16];
    for (int lane = 0; lane < 16; ++lane) {
      const int step = first + 4 * (lane % 4) + lane / 4;
      lanes[lane] = step < steps ? bf16_step(x + step * dot_step, order) : _mm512_setzero_si512();
    }
    transpose_words(lanes);
    for (int j = 0; j < 16; ++j) _mm512_store_si512(groups->pairs[j], lanes[j]);
  }
}

// A part of 16 bytes of each of a group's steps. Steps past the last one repeat it: their sums are not used.
template <class Decoder, bool full>
NIBBLE_512 inline void load_part(const std::uint8_t* codes, int steps, int part, __m512i (&rows)[4]) {
  constexpr int bytes = Decoder::step_bytes;
  if constexpr (full && bytes == 16) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) rows[r] = _mm512_loadu_si512(codes + 64 * r);
    return;
  }
  const auto at = [&](int step) {
    return codes + (full ? step : std::min(step, steps - 1)) * bytes + 16 * part;
  };
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    rows[r] = _mm512_castsi128_si512(part_at(at(4 * r)));
    rows[r] = _mm512_inserti32x4(rows[r], part_at(at(4 * r + 1)), 1);
    rows[r] = _mm512_inserti32x4(rows[r], part_at(at(4 * r + 2)), 2);
    rows[r] = _mm512_inserti32x4(rows[r], part_at(at(4 * r + 3)), 3);
  }
}

// Where one input reads rows to their ends, this many bytes further on are asked for: 8 to 25 % faster than
// what the processors' own prefetching reaches (EPYC, Zen 4).
constexpr std::int64_t far_ahead = 8192;
using RowSums = float[tile_rows][group_steps];

// The sums of one group's steps of one row with each input.
template <class Decoder, int count, bool full>
NIBBLE_512 inline void multiply_group(Decoder& decoder, const std::uint8_t* codes, const std::uint8_t* scales,
                                      int steps, const InputGroup* input, std::int64_t input_stride,
                                      float* sums) {
  __m512 even[count], odd[count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) even[i] = odd[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    if (c % Decoder::eights_a_part == 0) {
      __m512i rows[4];
      load_part<Decoder, full>(codes, steps, c / Decoder::eights_a_part, rows);
      decoder.take(rows);
    }
    __m512i pairs[4];
    decoder.pairs(c, pairs);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const std::uint32_t(*x)[group_steps] = input[i * input_stride].pairs + 4 * c;
      even[i] = _mm512_dpbf16_ps(even[i], (__m512bh)pairs[0], (__m512bh)_mm512_load_si512(x[0]));
      even[i] = _mm512_dpbf16_ps(even[i], (__m512bh)pairs[1], (__m512bh)_mm512_load_si512(x[1]));
      odd[i] = _mm512_dpbf16_ps(odd[i], (__m512bh)pairs[2], (__m512bh)_mm512_load_si512(x[2]));
      odd[i] = _mm512_dpbf16_ps(odd[i], (__m512bh)pairs[3], (__m512bh)_mm512_load_si512(x[3]));
    }
  }
  Scales512 scale{};
  if constexpr (Decoder::scaled) {
    const __m128i in_order =
        full ? part_at(scales) : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << steps) - 1), scales);
    scale = scales_of(
        _mm_shuffle_epi8(in_order, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    __m512 sum = _mm512_add_ps(even[i], odd[i]);
    if constexpr (Decoder::scaled) sum = _mm512_mul_ps(_mm512_mul_ps(sum, scale.half), scale.scale);
    _mm512_store_ps(sums + i * static_cast<std::int64_t>(sizeof(RowSums) / sizeof(float)), sum);
  }
}

// Adds the first `steps` steps' sums to the rows' total, in order.
NIBBLE_512 inline __m512 add_steps(__m512 total, const RowSums& sums, int steps) {
  __m512i lanes[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) lanes[r] = _mm512_load_si512(sums[r]);
  transpose_words(lanes);
#pragma GCC unroll 16
  for (int step = 0; step < 16; ++step) {
    if (step < steps) total = _mm512_add_ps(total, _mm512_castsi512_ps(lanes[4 * (step % 4) + step / 4]));
  }
  return total;
}

// One input: a row is read to its end, or for as many groups as have room for their sums. More inputs: all
// rows of the tile go through a group, so that the inputs' part of it stays in the first-level cache, and
// what the next group needs of each row is fetched meanwhile.
template <class Decoder, int count>
NIBBLE_512 void multiply_few(const StepRows& matrix, int begin, int end, const std::byte* prepared,
                             const TotalsSink& store) {
  constexpr int group_bytes = group_steps * Decoder::step_bytes, together = count == 1 ? 8 : 1;
  const InputGroup* inputs = reinterpret_cast<const InputGroup*>(prepared);
  const int steps = static_cast<int>(matrix.row_steps), groups = groups_of(steps * dot_step);
  const std::int64_t row_bytes = matrix.row_steps * Decoder::step_bytes;
  alignas(64) RowSums sums[together][count];
  alignas(64) TileTotals totals[count];
  Decoder decoder;
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    __m512 total[count];
    for (__m512& each : total) each = _mm512_setzero_ps();
    for (int from = 0; from < groups; from += together) {
      const int to = std::min(groups, from + together);
      const std::int64_t ahead = to < groups ? group_bytes : tile_rows * row_bytes - from * group_bytes;
      for (int r = 0; r < rows; ++r) {
        const std::uint8_t* codes = matrix.codes + (row + r) * row_bytes + from * group_bytes;
        const std::uint8_t* scales =
            Decoder::scaled ? matrix.scales + (row + r) * matrix.row_steps + from * group_steps : nullptr;
        for (int g = from; g < to; ++g, codes += group_bytes, scales += Decoder::scaled ? group_steps : 0) {
          const std::int64_t fetched = count > 1 ? ahead : far_ahead;
#pragma GCC unroll 16
          for (int line = 0; line < group_bytes; line += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(codes + fetched + line),
                         count > 1 ? _MM_HINT_T0 : _MM_HINT_T1);
          }
          const int left = std::min(group_steps, steps - g * group_steps);
          float* out = sums[g - from][0][r];
          if (left == group_steps) {
            multiply_group<Decoder, count, true>(decoder, codes, scales, left, inputs + g, groups, out);
          } else {
            multiply_group<Decoder, count, false>(decoder, codes, scales, left, inputs + g, groups, out);
          }
        }
      }
      for (int g = from; g < to; ++g) {
        for (int i = 0; i < count; ++i)
          total[i] = add_steps(total[i], sums[g - from][i], std::min(group_steps, steps - g * group_steps));
      }
    }
    for (int i = 0; i < count; ++i) {
      _mm512_store_ps(totals[i], total[i]);
      store(row, i, totals[i]);
    }
  }
}

// ---- Many inputs: a lane is a row. A tile of rows is decoded once and multiplied by the inputs, eight at a
// time.
constexpr int inputs_at_once = 8;  // their sums of both parities fill half the registers
constexpr int decoded_steps = 96;  // of a tile; they lie on the stack, that is, in the second-level cache
constexpr int most_totals = 128;   // inputs that share one decoding

// A step of a group of inputs, as the decoders pair k.
struct alignas(64) GroupStep {
  std::uint32_t pairs[16][input_group];
};

// Adds the steps' sums of a decoded tile with inputs first .. first + count - 1 of a group to their totals.
template <bool scaled, int count>
NIBBLE_512 void multiply_decoded(const RowsStep* weights, int steps, const GroupStep* inputs, int first,
                                 TileTotals* totals) {
  for (int step = 0; step < steps; ++step) {
    __m512 sums[2][count];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) sums[0][i] = sums[1][i] = _mm512_setzero_ps();
    const std::uint32_t(*x)[input_group] = inputs[step].pairs;
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const __m512bh pairs = (__m512bh)_mm512_load_si512(weights[step].pairs[j]);
      __m512(&chain)[count] = sums[j / 2 % 2];
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) {
        const __m512i one = _mm512_set1_epi32(static_cast<int>(x[j][first + i]));
        chain[i] = _mm512_dpbf16_ps(chain[i], pairs, (__m512bh)one);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      __m512 sum = _mm512_add_ps(sums[0][i], sums[1][i]);
      if constexpr (scaled) {
        if (weights[step].halved) sum = _mm512_mul_ps(sum, _mm512_load_ps(weights[step].halves));
        sum = _mm512_mul_ps(sum, _mm512_load_ps(weights[step].scales));
      }
      _mm512_store_ps(totals[i], _mm512_add_ps(_mm512_load_ps(totals[i]), sum));
    }
  }
}

// Has the tile that comes next fetched, a part at each step: of block formats a line of each row where one
// begins, of bfloat16 as much as lies in a row.
inline void fetch_tile(const StepRows& matrix, int row, int step, int step_bytes) {
  const std::int64_t row_bytes = matrix.row_steps * step_bytes;
  const std::uint8_t* at = matrix.codes + row * row_bytes;
  const bool whole_lines = step_bytes == 64;
  if (step * step_bytes % 64 != 0) return;
#pragma GCC unroll 16
  for (int line = 0; line < tile_rows; ++line) {
    const std::int64_t offset =
        whole_lines ? (step * tile_rows + line) * 64 : line * row_bytes + step * step_bytes;
    _mm_prefetch(reinterpret_cast<const char*>(at + offset), _MM_HINT_T1);
  }
}

template <class Decoder>
NIBBLE_512 void multiply_many(const StepRows& matrix, int begin, int end, int count,
                              const std::byte* prepared, const TotalsSink& store) {
  using Multiply = void (*)(const RowsStep*, int, const GroupStep*, int, TileTotals*);
  constexpr bool scaled = Decoder::scaled;
  static constexpr std::array<Multiply, inputs_at_once> by_count = {
      multiply_decoded<scaled, 1>, multiply_decoded<scaled, 2>, multiply_decoded<scaled, 3>,
      multiply_decoded<scaled, 4>, multiply_decoded<scaled, 5>, multiply_decoded<scaled, 6>,
      multiply_decoded<scaled, 7>, multiply_decoded<scaled, 8>};
  const int steps = static_cast<int>(matrix.row_steps);
  RowsStep weights[decoded_steps];
  alignas(64) TileTotals totals[most_totals];
  Decoder decoder;
  for (int row = begin; row < end; row += tile_rows) {
    for (int begin_input = 0; begin_input < count; begin_input += most_totals) {
      const int end_input = std::min(count, begin_input + most_totals);
      std::fill_n(totals[0], (end_input - begin_input) * tile_rows, 0.0f);
      for (int from = 0; from < steps; from += decoded_steps) {
        const int length = std::min(decoded_steps, steps - from);
        for (int step = 0; step < length; ++step) {
          fetch_tile(matrix, row + tile_rows, from + step, Decoder::step_bytes);
          decode_rows(decoder, matrix, row, std::min(tile_rows, end - row), from + step, weights[step]);
        }
        for (int i = begin_input; i < end_input; i += inputs_at_once) {
          const GroupStep* group = reinterpret_cast<const GroupStep*>(prepared) +
                                   static_cast<std::int64_t>(i / input_group) * steps + from;
          const int together = std::min(inputs_at_once, end_input - i);
          by_count[static_cast<std::size_t>(together - 1)](weights, length, group, i % input_group,
                                                           totals + (i - begin_input));
        }
      }
      for (int i = begin_input; i < end_input; ++i) store(row, i, totals[i - begin_input]);
    }
  }
}

template <class Decoder, int count>
void choose_few(const StepRows& matrix, int begin, int end, const DotInputs& inputs,
                const TotalsSink& store) {
  if (inputs.rows.count == count)
    return multiply_few<Decoder, count>(matrix, begin, end, inputs.prepared, store);
  if constexpr (count > 1) choose_few<Decoder, count - 1>(matrix, begin, end, inputs, store);
}

}  // namespace

bool avx512_bf16_supported() {
  return avx512_supported() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}

NIBBLE_512 void avx512_bf16_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (takes_floats(inputs)) return prepare_float_inputs(matrix, inputs, begin, end);
  const int steps = inputs.rows.cols / dot_step;
  if (!are_few(matrix, inputs.rows.count)) return pack_input_groups(inputs, begin, end, pair_order_words());
  const std::int64_t groups = groups_of(inputs.rows.cols);
  for (int i = begin; i < end; ++i)
    pack_groups(inputs.rows[i], steps, reinterpret_cast<InputGroup*>(inputs.prepared) + i * groups);
}

void avx512_bf16_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  if (takes_floats(inputs)) return avx512_multiply(matrix, begin, end, inputs, store);
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        const StepRows steps = steps_of(each);
        inputs.rows.count <= few_inputs<Decoder>
            ? choose_few<Decoder, few_inputs<Decoder>>(steps, begin, end, inputs, store)
            : multiply_many<Decoder>(steps, begin, end, inputs.rows.count, inputs.prepared, store);
      },
      matrix);
}

}  // namespace nibble
