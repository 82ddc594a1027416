// A step of two tiles of rows by a few inputs, a lane a row. What is read of an input goes to both tiles, so
// that products, of which a processor starts as many as loads, wait for half as many of these.
#pragma once

#include <algorithm>

#include "ops/linear/block_groups512.h"
#include "ops/linear/tile_rows512.h"

namespace nibble {

inline constexpr int tiles_at_once = 2;
static_assert(range_rows % (tiles_at_once * tile_rows) == 0);
// Whose chains of one parity fill half the registers.
inline constexpr int inputs_at_once = 8;

// Two tiles from a row on. Past the last row the second one repeats it, and nobody takes its totals.
template <class Decoder>
struct TwoTiles {
  TileSteps<Decoder> tiles[tiles_at_once];
  int count;  // of the tiles that there are

  TwoTiles(const StepRows& matrix, int row, int end)
      : tiles{{matrix, row, std::min(tile_rows, end - row)},
              {matrix, std::min(row + tile_rows, end - 1), std::clamp(end - row - tile_rows, 1, tile_rows)}},
        count(end - row > tile_rows ? 2 : 1) {}
  NIBBLE_512 void read(int step) {
    for (TileSteps<Decoder>& tile : tiles) tile.read(step);
  }
};

// Weights of a step that are decoded in memory.
template <class Products>
struct DecodedWeights {
  const RowsStep<Products> (&tiles)[tiles_at_once];

  NIBBLE_512_INLINE void pairs(int t, int c, int parity, typename Products::Values (&out)[2]) const {
    for (int j = 0; j < 2; ++j) out[j] = Products::load(tiles[t].pairs[4 * c + 2 * parity + j]);
  }
  const std::uint8_t* scales(int t) const { return tiles[t].scales; }
  bool plain() const { return tiles[0].plain && tiles[1].plain; }
};

// Weights of the step that was read last, decoded where they are wanted.
template <class Products, class Decoder>
class CodedWeights {
 public:
  NIBBLE_512_INLINE CodedWeights(const Decoder& decoder, const TwoTiles<Decoder>& rows, int step)
      : decoder_(decoder), rows_(rows), step_(step) {
#pragma GCC unroll 2
    for (int t = 0; t < tiles_at_once; ++t) take_parts(decoder, rows.tiles[t].parts(step), words_[t]);
  }
  NIBBLE_512_INLINE void pairs(int t, int c, int parity, typename Products::Values (&out)[2]) const {
    __m512i found[2];
    decoder_.pairs(words_[t], c, parity, found);
    for (int j = 0; j < 2; ++j) out[j] = Products::of(found[j]);
  }
  const std::uint8_t* scales(int t) const { return rows_.tiles[t].scales(step_); }
  bool plain() const { return rows_.tiles[0].plain() && rows_.tiles[1].plain(); }

 private:
  const Decoder& decoder_;
  const TwoTiles<Decoder>& rows_;
  const int step_;
  __m512i words_[tiles_at_once][Decoder::word_count];
};

// Adds a step's sums with inputs first .. first + count - 1 of a group to the totals of each tile.
template <class Products, bool scaled, int count, class Weights>
NIBBLE_512_INLINE void add_step(const Weights& weights, const GroupStep<Products>& inputs, int first,
                                TileTotals* const (&totals)[tiles_at_once]) {
  static_assert(count <= inputs_at_once);
  // A chain is eight products that wait for one another: chains of both parities go side by side where there
  // are registers for them.
  constexpr int parities_at_once = 2 * count <= inputs_at_once ? 2 : 1;
  __m512 chains[2][tiles_at_once][count];
#pragma GCC unroll 2
  for (int from = 0; from < 2; from += parities_at_once) {
#pragma GCC unroll 2
    for (int parity = from; parity < from + parities_at_once; ++parity) {
#pragma GCC unroll 2
      for (int t = 0; t < tiles_at_once; ++t) {
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i) chains[parity][t][i] = _mm512_setzero_ps();
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 2
      for (int parity = from; parity < from + parities_at_once; ++parity) {
        typename Products::Values pairs[tiles_at_once][2];
#pragma GCC unroll 2
        for (int t = 0; t < tiles_at_once; ++t) weights.pairs(t, c, parity, pairs[t]);
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
#pragma GCC unroll 8
          for (int i = 0; i < count; ++i) {
            const auto input = Products::spread(inputs.pairs[4 * c + 2 * parity + j], first + i);
#pragma GCC unroll 2
            for (int t = 0; t < tiles_at_once; ++t)
              chains[parity][t][i] = Products::add(chains[parity][t][i], pairs[t][j], input);
          }
        }
      }
    }
  }
  const bool plain = weights.plain();
#pragma GCC unroll 2
  for (int t = 0; t < tiles_at_once; ++t)
    add_to_totals<scaled>(chains[0][t], chains[1][t], weights.scales(t), plain, totals[t]);
}

}  // namespace nibble
