#include "ops/linear/dot_avx512.h"

#include <algorithm>
#include <array>

#include "ops/linear/block_groups512.h"
#include "ops/linear/dot_few_avx512.h"
#include "ops/linear/dot_several_avx512.h"
#include "ops/linear/dot_tile_avx512.h"
#include "ops/linear/two_tiles512.h"

namespace nibble {
namespace {

// Ragged steps are left to the float kernels, and so is what is not bfloat16.
template <class Products>
bool takes_floats(const DenseMatrix& matrix, const DotInputs& inputs) {
  return inputs.values == InputValues::any_float || inputs.rows.cols % dot_step != 0 ||
         (inputs.rows.count <= Products::plain_inputs && std::holds_alternative<Bf16Matrix>(matrix));
}

// Many inputs: a lane is a row. Some steps of two tiles are decoded once, into the first-level cache, and
// multiplied by the inputs, a part of a group at a time.
template <class Decoder>
constexpr int decoded_steps = Decoder::scaled ? 4 : 2;
constexpr int most_totals = 128;  // inputs that share one decoding

template <class Products, bool scaled, int count>
NIBBLE_512 void multiply_decoded(const RowsStep<Products> (*weights)[tiles_at_once], int steps,
                                 const GroupStep<Products>* inputs, int first,
                                 TileTotals* const (&totals)[tiles_at_once]) {
  for (int step = 0; step < steps; ++step)
    add_step<Products, scaled, count>(DecodedWeights<Products>{weights[step]}, inputs[step], first, totals);
}

// By the number of inputs less one.
template <class Products>
using MultiplyDecoded = void (*)(const RowsStep<Products> (*)[tiles_at_once], int, const GroupStep<Products>*,
                                 int, TileTotals* const (&)[tiles_at_once]);
template <class Products, bool scaled, int... less_one>
constexpr std::array<MultiplyDecoded<Products>, sizeof...(less_one)> multiply_by_count(
    std::integer_sequence<int, less_one...>) {
  return {multiply_decoded<Products, scaled, less_one + 1>...};
}

template <class Products, class Decoder>
NIBBLE_512 void multiply_many(const StepRows& matrix, int begin, int end, int count,
                              const std::byte* prepared, const TotalsSink& store) {
  static constexpr auto by_count =
      multiply_by_count<Products, Decoder::scaled>(std::make_integer_sequence<int, inputs_at_once>());
  constexpr int most_rows = tiles_at_once * tile_rows, chunk = decoded_steps<Decoder>;
  const int steps = static_cast<int>(matrix.row_steps);
  RowsStep<Products> weights[chunk][tiles_at_once];
  alignas(64) TileTotals totals[tiles_at_once][most_totals];
  const Decoder decoder;
  for (int row = begin; row < end; row += most_rows) {
    TwoTiles<Decoder> rows(matrix, row, end);
    Ahead ahead(matrix, (row + most_rows) * matrix.row_steps, Decoder::step_bytes);
    for (int begin_input = 0; begin_input < count; begin_input += most_totals) {
      const int end_input = std::min(count, begin_input + most_totals);
      for (auto& tile : totals) std::fill_n(tile[0], (end_input - begin_input) * tile_rows, 0.0f);
      for (int from = 0; from < steps; from += chunk) {
        const int length = std::min(chunk, steps - from);
        for (int step = 0; step < length; ++step) {
          rows.read(from + step);
          for (int t = 0; t < tiles_at_once; ++t) {
            if (begin_input == 0) ahead.ask_for<Decoder, tile_rows>();
            decode_rows(decoder, rows.tiles[t], from + step, weights[step][t]);
          }
        }
        for (int i = begin_input, together; i < end_input; i += together) {
          // Of a group, in equal parts.
          const int left = std::min(end_input, (i / input_group + 1) * input_group) - i;
          together = left > inputs_at_once ? (left + 1) / 2 : left;
          const GroupStep<Products>* group = reinterpret_cast<const GroupStep<Products>*>(prepared) +
                                             static_cast<std::int64_t>(i / input_group) * steps + from;
          by_count[static_cast<std::size_t>(together - 1)](
              weights, length, group, i % input_group,
              {totals[0] + (i - begin_input), totals[1] + (i - begin_input)});
        }
      }
      for (int t = 0; t < rows.count; ++t) {
        for (int i = begin_input; i < end_input; ++i)
          store(row + t * tile_rows, i, totals[t][i - begin_input]);
      }
    }
  }
}

template <class Products>
NIBBLE_512 void prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (takes_floats<Products>(matrix, inputs)) return prepare_float_inputs(matrix, inputs, begin, end);
  if (are_few_inputs(inputs.rows.count)) return avx512_few_prepare<Products>(inputs, begin, end);
  pack_input_groups<Products>(inputs, begin, end, pair_order_words());
}

template <class Products>
void multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
              const TotalsSink& store) {
  if (takes_floats<Products>(matrix, inputs)) return avx512_multiply(matrix, begin, end, inputs, store);
  if (are_few_inputs(inputs.rows.count))
    return avx512_few_multiply<Products>(matrix, begin, end, inputs, store);
  if (are_several_inputs(matrix, inputs.rows.count))
    return avx512_several_multiply<Products>(matrix, begin, end, inputs, store);
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        multiply_many<Products, Decoder>(steps_of(each, inputs.lines), begin, end, inputs.rows.count,
                                         inputs.prepared, store);
      },
      matrix);
}

}  // namespace

bool avx512_vnni_supported() {
  return avx512_supported() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
void avx512_vnni_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  prepare<SingleProducts>(matrix, inputs, begin, end);
}
void avx512_vnni_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  multiply<SingleProducts>(matrix, begin, end, inputs, store);
}

bool avx512_bf16_supported() { return avx512_vnni_supported() && __builtin_cpu_supports("avx512bf16"); }
void avx512_bf16_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  prepare<PairProducts>(matrix, inputs, begin, end);
}
void avx512_bf16_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  multiply<PairProducts>(matrix, begin, end, inputs, store);
}

}  // namespace nibble
