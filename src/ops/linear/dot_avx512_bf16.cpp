#include "ops/linear/dot_avx512_bf16.h"

#include <algorithm>
#include <array>

#include "ops/linear/block_groups512.h"
#include "ops/linear/dot_few_avx512.h"
#include "ops/linear/dot_several_avx512.h"
#include "ops/linear/dot_tile_avx512.h"

namespace nibble {
namespace {

// Ragged steps are left to the float kernels, and so is what is not bfloat16.
bool takes_floats(const DotInputs& inputs) {
  return inputs.values == InputValues::any_float || inputs.rows.cols % dot_step != 0;
}

// Many inputs: a lane is a row. A tile of rows is decoded once and multiplied by the inputs, eight at a
// time.
constexpr int inputs_at_once = 8;  // their sums of both parities fill half the registers
constexpr int decoded_steps = 96;  // of a tile; they lie on the stack, that is, in the second-level cache
constexpr int most_totals = 128;   // inputs that share one decoding

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
    add_to_totals<scaled>(sums[0], sums[1], weights[step].scales, weights[step].plain, totals);
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
  const Decoder decoder;
  for (int row = begin; row < end; row += tile_rows) {
    TileSteps<Decoder> tile(matrix, row, std::min(tile_rows, end - row));
    Ahead ahead(matrix, (row + tile_rows) * matrix.row_steps, Decoder::step_bytes);
    for (int begin_input = 0; begin_input < count; begin_input += most_totals) {
      const int end_input = std::min(count, begin_input + most_totals);
      std::fill_n(totals[0], (end_input - begin_input) * tile_rows, 0.0f);
      for (int from = 0; from < steps; from += decoded_steps) {
        const int length = std::min(decoded_steps, steps - from);
        for (int step = 0; step < length; ++step) {
          if (begin_input == 0) ahead.ask_for<Decoder, tile_rows>();
          tile.read(from + step);
          decode_rows(decoder, tile, from + step, weights[step]);
        }
        for (int i = begin_input, together; i < end_input; i += together) {
          // Of a group, in equal parts.
          const int left = std::min(end_input, (i / input_group + 1) * input_group) - i;
          together = left > inputs_at_once ? (left + 1) / 2 : left;
          const GroupStep* group = reinterpret_cast<const GroupStep*>(prepared) +
                                   static_cast<std::int64_t>(i / input_group) * steps + from;
          by_count[static_cast<std::size_t>(together - 1)](weights, length, group, i % input_group,
                                                           totals + (i - begin_input));
        }
      }
      for (int i = begin_input; i < end_input; ++i) store(row, i, totals[i - begin_input]);
    }
  }
}

}  // namespace

bool avx512_bf16_supported() {
  return avx512_supported() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni");
}

NIBBLE_512 void avx512_bf16_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (takes_floats(inputs)) return prepare_float_inputs(matrix, inputs, begin, end);
  if (are_few_inputs(matrix, inputs.rows.count)) return avx512_few_prepare(inputs, begin, end);
  pack_input_groups(inputs, begin, end, pair_order_words());
}

void avx512_bf16_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  if (takes_floats(inputs)) return avx512_multiply(matrix, begin, end, inputs, store);
  if (are_few_inputs(matrix, inputs.rows.count))
    return avx512_few_multiply(matrix, begin, end, inputs, store);
  if (are_several_inputs(inputs.rows.count))
    return avx512_several_multiply(matrix, begin, end, inputs, store);
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        multiply_many<Decoder>(steps_of(each), begin, end, inputs.rows.count, inputs.prepared, store);
      },
      matrix);
}

}  // namespace nibble
