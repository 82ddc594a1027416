// Which tiles a dense product of many tokens is computed in. A launch is as long as its rounds of one tile a
// cluster, so the shape is chosen whose rounds cost least; no bit depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "ops/linear/cuda/dense_runs.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace nibble {

// Tokens that a block takes at a time, with two tiles of 64 rows, and the blocks of a cluster: rows x tokens
// of them. A lone shape is for launches of one tile a cluster at most: it leaves no room to put a tile out
// beside the next one's products.
struct DenseManyShape {
  int columns, cluster_rows, cluster_tokens;
  bool lone = false;

  NIBBLE_HOST_DEVICE constexpr int cluster() const { return cluster_rows * cluster_tokens; }
};
inline constexpr int dense_block_tiles = 2;

// Those that there is code for; of equal costs the first is taken.
inline constexpr std::array<DenseManyShape, 12> dense_many_shapes = {{{176, 2, 1, true},
                                                                      {176, 1, 2, true},
                                                                      {linear_many_columns, 2, 1},
                                                                      {linear_many_columns, 1, 2},
                                                                      {144, 2, 1},
                                                                      {128, 1, 2},
                                                                      {128, 2, 1},
                                                                      {112, 2, 1},
                                                                      {96, 1, 2},
                                                                      {96, 2, 1},
                                                                      {64, 1, 2},
                                                                      {64, 2, 1}}};

// A product, and the blocks that there is room for.
struct DenseManyWork {
  DenseShape weights;
  int tokens, blocks;
};

// What the product takes, in no unit, by blocks that take so many tokens at a time. A k64 block has a part
// that the tokens do not change, and what clusters share costs its way through memory. A quarter is for the
// work itself, since clusters that idle leave power to the others.
inline long long cost_of(const Deal& deal, int k_blocks, int columns) {
  constexpr int of_any_tokens = 100, of_sharing = 32;
  const int tiles = deal.row_tiles * deal.token_tiles;
  const int units = (deal.units() + deal.clusters - 1) / deal.clusters;
  const long long rounds = static_cast<long long>(deal.rounds) * dense_k_chunks + units;
  const long long busy = (rounds * k_blocks + (units > 0 ? of_sharing * dense_k_chunks : 0)) * deal.clusters;
  const long long work = static_cast<long long>(tiles) * dense_k_chunks * k_blocks;
  return (3 * busy + work) * (columns + of_any_tokens);
}

// What a product takes by tiles of one of dense_many_shapes.
struct DenseManyChoice {
  std::size_t shape;
  Deal deal;
  long long cost;
};

// Whichever way of dealing them costs less.
inline DenseManyChoice cheapest_deal(const DenseManyWork& work, std::size_t shape) {
  const DenseManyShape& of = dense_many_shapes[shape];
  const int rows = of.cluster_rows * dense_block_tiles, columns = of.cluster_tokens * of.columns;
  const auto choice = [&](bool may_share) -> DenseManyChoice {
    const Deal deal =
        deal_tiles((work.weights.tiles() + rows - 1) / rows, (work.tokens + columns - 1) / columns,
                   std::max(1, work.blocks / of.cluster()), may_share);
    if (of.lone && !deal.lone()) return {shape, deal, std::numeric_limits<long long>::max()};
    return {shape, deal, cost_of(deal, work.weights.blocks(), of.columns)};
  };
  const DenseManyChoice whole = choice(false), shared = choice(true);
  return shared.cost < whole.cost ? shared : whole;
}

// Of all shapes.
inline DenseManyChoice cheapest_deal(const DenseManyWork& work) {
  DenseManyChoice best{.shape = 0, .deal = {}, .cost = std::numeric_limits<long long>::max()};
  for (std::size_t shape = 0; shape < dense_many_shapes.size(); ++shape) {
    const DenseManyChoice other = cheapest_deal(work, shape);
    if (other.cost < best.cost) best = other;
  }
  return best;
}

}  // namespace nibble
