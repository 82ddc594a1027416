#include "ops/linear/dot_avx512.h"

#include <algorithm>
#include <array>

#include "ops/linear/block_groups512.h"
#include "ops/linear/dot_few_avx512.h"
#include "ops/linear/dot_several_avx512.h"
#include "ops/linear/dot_tile_avx512.h"

namespace nibble {
namespace {

// Ragged steps are left to the float kernels, and so is what is not bfloat16.
template <class Products>
bool takes_floats(const DenseMatrix& matrix, const DotInputs& inputs) {
  return inputs.values == InputValues::any_float || inputs.rows.cols % dot_step != 0 ||
         (inputs.rows.count <= Products::plain_inputs && std::holds_alternative<Bf16Matrix>(matrix));
}

// Many inputs: a lane is a row. A tile of rows is decoded once and multiplied by the inputs, a part of a
// group at a time.
constexpr int decoded_steps = 96;  // of a tile; they lie on the stack, that is, in the second-level cache
constexpr int most_totals = 128;   // inputs that share one decoding

// Adds the steps' sums of a decoded tile with inputs first .. first + count - 1 of a group to their totals.
template <class Products, bool scaled, int count>
NIBBLE_512 void multiply_decoded(const RowsStep<Products>* weights, int steps,
                                 const GroupStep<Products>* inputs, int first, TileTotals* totals) {
  constexpr int passes = 2 / Products::parities_at_once;
  for (int step = 0; step < steps; ++step) {
    __m512 sums[2][count];
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) sums[0][i] = sums[1][i] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int pass = 0; pass < passes; ++pass) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const int parity = j / 2 % 2;
        if (passes == 2 && parity != pass) continue;
        const auto pair = Products::load(weights[step].pairs[j]);
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) {
          sums[parity][i] =
              Products::add(sums[parity][i], pair, Products::spread(inputs[step].pairs[j], first + i));
        }
      }
    }
    add_to_totals<scaled>(sums[0], sums[1], weights[step].scales, weights[step].plain, totals);
  }
}

// By the number of inputs less one.
template <class Products>
using MultiplyDecoded = void (*)(const RowsStep<Products>*, int, const GroupStep<Products>*, int,
                                 TileTotals*);
template <class Products, bool scaled, int... less_one>
constexpr std::array<MultiplyDecoded<Products>, sizeof...(less_one)> multiply_by_count(
    std::integer_sequence<int, less_one...>) {
  return {multiply_decoded<Products, scaled, less_one + 1>...};
}

template <class Products, class Decoder>
NIBBLE_512 void multiply_many(const StepRows& matrix, int begin, int end, int count,
                              const std::byte* prepared, const TotalsSink& store) {
  static constexpr auto by_count = multiply_by_count<Products, Decoder::scaled>(
      std::make_integer_sequence<int, Products::inputs_at_once>());
  const int steps = static_cast<int>(matrix.row_steps);
  RowsStep<Products> weights[decoded_steps];
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
          together = left > Products::inputs_at_once ? (left + 1) / 2 : left;
          const GroupStep<Products>* group = reinterpret_cast<const GroupStep<Products>*>(prepared) +
                                             static_cast<std::int64_t>(i / input_group) * steps + from;
          by_count[static_cast<std::size_t>(together - 1)](weights, length, group, i % input_group,
                                                           totals + (i - begin_input));
        }
      }
      for (int i = begin_input; i < end_input; ++i) store(row, i, totals[i - begin_input]);
    }
  }
}

template <class Products>
NIBBLE_512 void prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (takes_floats<Products>(matrix, inputs)) return prepare_float_inputs(matrix, inputs, begin, end);
  if (are_few_inputs(matrix, inputs.rows.count)) return avx512_few_prepare<Products>(inputs, begin, end);
  pack_input_groups<Products>(inputs, begin, end, pair_order_words());
}

template <class Products>
void multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
              const TotalsSink& store) {
  if (takes_floats<Products>(matrix, inputs)) return avx512_multiply(matrix, begin, end, inputs, store);
  if (are_few_inputs(matrix, inputs.rows.count))
    return avx512_few_multiply<Products>(matrix, begin, end, inputs, store);
  if (are_several_inputs(inputs.rows.count))
    return avx512_several_multiply<Products>(matrix, begin, end, inputs, store);
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        multiply_many<Products, Decoder>(steps_of(each), begin, end, inputs.rows.count, inputs.prepared,
                                         store);
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
