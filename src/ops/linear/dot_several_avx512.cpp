// A lane is a row, as for many inputs, but a step's pairs go from their decoding straight into the products.
#include "ops/linear/dot_several_avx512.h"

#include "ops/linear/two_tiles512.h"

namespace nibble {
namespace {

constexpr int least_inputs = 4;  // fewer go by dot_few_avx512.h

// A function of its own, so that the compiler does not take what is read of the inputs out of the loop over
// tiles, to where it has no registers for it.
template <class Products, class Decoder, int count>
[[gnu::noinline]] NIBBLE_512 void multiply_step(const Decoder& decoder, const TwoTiles<Decoder>& rows,
                                                int step, const GroupStep<Products>& inputs,
                                                TileTotals (&totals)[tiles_at_once][count]) {
  add_step<Products, Decoder::scaled, count>(CodedWeights<Products, Decoder>(decoder, rows, step), inputs, 0,
                                             {totals[0], totals[1]});
}

template <class Products, class Decoder, int count>
NIBBLE_512 void multiply_several(const StepRows& matrix, int begin, int end, const std::byte* prepared,
                                 const TotalsSink& store) {
  constexpr int most_rows = tiles_at_once * tile_rows;
  const GroupStep<Products>* inputs = reinterpret_cast<const GroupStep<Products>*>(prepared);
  const int steps = static_cast<int>(matrix.row_steps);
  alignas(64) TileTotals totals[tiles_at_once][count];
  const Decoder decoder;
  for (int row = begin; row < end; row += most_rows) {
    TwoTiles<Decoder> rows(matrix, row, end);
    Ahead ahead(matrix, (row + most_rows) * matrix.row_steps, Decoder::step_bytes);
    std::fill_n(totals[0][0], tiles_at_once * count * tile_rows, 0.0f);
    for (int step = 0; step < steps; ++step) {
      rows.read(step);
      for (int t = 0; t < tiles_at_once; ++t) ahead.ask_for<Decoder, tile_rows>();
      multiply_step<Products, Decoder, count>(decoder, rows, step, inputs[step], totals);
    }
    for (int t = 0; t < rows.count; ++t) {
      for (int i = 0; i < count; ++i) store(row + t * tile_rows, i, totals[t][i]);
    }
  }
}

}  // namespace

// Two tiles' words of bfloat16 are more than there are registers.
bool are_several_inputs(const DenseMatrix& matrix, int count) {
  return count >= least_inputs && count <= inputs_at_once && !std::holds_alternative<Bf16Matrix>(matrix);
}

template <class Products>
void avx512_several_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                             const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        if constexpr (Decoder::scaled) {
          with_count<least_inputs, inputs_at_once>(inputs.rows.count, [&](auto count) {
            multiply_several<Products, Decoder, count>(steps_of(each, inputs.lines), begin, end,
                                                       inputs.prepared, store);
          });
        }
      },
      matrix);
}

template void avx512_several_multiply<PairProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                    const TotalsSink&);
template void avx512_several_multiply<SingleProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                      const TotalsSink&);

}  // namespace nibble
