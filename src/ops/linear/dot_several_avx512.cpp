// A lane is a row, as for many inputs, but a step's pairs go from their decoding straight into the products.
#include "ops/linear/dot_several_avx512.h"

#include <algorithm>

#include "ops/linear/block_groups512.h"
#include "ops/linear/tile_rows512.h"

namespace nibble {
namespace {

constexpr int least_inputs = 2, most_inputs = 8;  // whose sums of both parities fill half the registers

// One step of a tile with each input. A function of its own, so that the compiler does not take what is read
// of the inputs out of the loop over tiles, to where it has no registers for it.
template <class Products, class Decoder, int count>
[[gnu::noinline]] NIBBLE_512 void multiply_step(const Decoder& decoder, const std::uint8_t (*parts)[4][64],
                                                const GroupStep<Products>& inputs, const std::uint8_t* scales,
                                                bool plain, TileTotals* totals) {
  constexpr int part_count = Decoder::step_bytes / 16;
  __m512i words[Decoder::word_count];
  __m512 chains[2][count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) chains[0][i] = chains[1][i] = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int half = 0; half < 8; ++half) {
    if (half * part_count % 8 == 0) {
      const int part = half * part_count / 8;
      __m512i rows[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) rows[r] = _mm512_load_si512(parts[part][r]);
      decoder.take(rows, words + 4 * part);
    }
    __m512i pairs[2];
    decoder.pairs(words, half / 2, half % 2, pairs);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const auto weights = Products::of(pairs[j]);
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) {
        __m512& chain = chains[half % 2][i];
        chain = Products::add(chain, weights, Products::spread(inputs.pairs[2 * half + j], i));
      }
    }
  }
  add_to_totals<Decoder::scaled>(chains[0], chains[1], scales, plain, totals);
}

// Two tiles go through a step, so that the inputs' part of it comes once for both.
template <class Products, class Decoder, int count>
NIBBLE_512 void multiply_several(const StepRows& matrix, int begin, int end, const std::byte* prepared,
                                 const TotalsSink& store) {
  constexpr int most_rows = 2 * tile_rows;
  const GroupStep<Products>* inputs = reinterpret_cast<const GroupStep<Products>*>(prepared);
  const int steps = static_cast<int>(matrix.row_steps);
  alignas(64) TileTotals totals[2][count];
  const Decoder decoder;
  for (int row = begin; row < end; row += most_rows) {
    const int second = std::min(row + tile_rows, end - 1);
    TileSteps<Decoder> tiles[2] = {{matrix, row, std::min(tile_rows, end - row)},
                                   {matrix, second, std::min(tile_rows, end - second)}};
    Ahead ahead(matrix, (row + most_rows) * matrix.row_steps, Decoder::step_bytes);
    std::fill_n(totals[0][0], 2 * count * tile_rows, 0.0f);
    for (int step = 0; step < steps; ++step) {
      for (auto& tile : tiles) tile.read(step);
      for (int t = 0; t < 2; ++t) {
        ahead.ask_for<Decoder, 16>();
        multiply_step<Products, Decoder, count>(decoder, tiles[t].parts(step), inputs[step],
                                                tiles[t].scales(step), tiles[t].plain(), totals[t]);
      }
    }
    for (int t = 0; t < 2 && row + t * tile_rows < end; ++t) {
      for (int i = 0; i < count; ++i) store(row + t * tile_rows, i, totals[t][i]);
    }
  }
}

}  // namespace

bool are_several_inputs(int count) { return count >= least_inputs && count <= most_inputs; }

template <class Products>
void avx512_several_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                             const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        with_count<least_inputs, most_inputs>(inputs.rows.count, [&](auto count) {
          multiply_several<Products, Decoder, count>(steps_of(each), begin, end, inputs.prepared, store);
        });
      },
      matrix);
}

template void avx512_several_multiply<PairProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                    const TotalsSink&);
template void avx512_several_multiply<SingleProducts>(const DenseMatrix&, int, int, const DotInputs&,
                                                      const TotalsSink&);

}  // namespace nibble
