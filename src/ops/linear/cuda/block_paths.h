// Which kernel takes a product with a matrix in blocks. All have the same bits; what decides is what they
// take.
#pragma once

#include <algorithm>

#include "ops/linear/cuda/block_matrices.h"

namespace nibble {

// Which kernel: tests choose one, others take the fastest one. `some` is of FP8 alone.
enum class BlockLinearPath { fastest, few, some, many };

inline constexpr int some_rows = 64;          // of activations in a group, at most
inline constexpr int some_tile_granules = 4;  // of a warpgroup, which has a tile
inline constexpr int many_item_granules = 8;  // of a block, a warp each
inline constexpr int few_most_rows = 32;      // that a block for few takes at a time
inline constexpr int few_most_tokens = 4 * few_most_rows;

struct BlockProduct {
  int granules, tokens, processors;
};

// Of the kernel for some: a block has two tiles where there are more than run at once.
constexpr int some_tiles_of(int granules, int processors) {
  return granules > some_tile_granules * processors ? 2 : 1;
}

// Nanoseconds that 128 columns of K take, of FP8 on an H200 (blocks_cuda_bench --dense-path, 2026-11-30). The
// kernel for few deals granules to all multiprocessors, and takes as many turns as there are 32 rows. A block
// of the others has whole tiles, of which so many at a time run at once: where a matrix has few, it is not
// worth their waiting.
constexpr int few_cost(const BlockProduct& product) {
  const int turns = (product.tokens + few_most_rows - 1) / few_most_rows;
  const int of_granule = product.tokens <= 16 ? 115 : 210;
  return turns * of_granule * product.granules / product.processors;
}
constexpr int some_cost(const BlockProduct& product) {
  const int tiles = some_tiles_of(product.granules, product.processors);
  const int groups = (product.tokens + some_rows - 1) / some_rows;
  const int of_block = tiles * some_tile_granules;
  const int items = (product.granules + of_block - 1) / of_block * groups;
  const int at_once = std::max(1, product.processors * 10 / 11);  // in clusters
  const int of_item = (product.tokens <= 32 ? 390 : 470) + (tiles - 1) * 230;
  return (items + at_once - 1) / at_once * of_item;
}
constexpr int many_cost(const BlockProduct& product) {
  const int rows = product.tokens <= 32 ? 32 : product.tokens <= 64 ? 64 : 128;
  const int items =
      (product.granules + many_item_granules - 1) / many_item_granules * ((product.tokens + rows - 1) / rows);
  const int of_item = rows == 32 ? 640 : rows == 64 ? 770 : 1100;
  return (items + product.processors - 1) / product.processors * of_item;
}
constexpr BlockLinearPath fastest_fp8_path(const BlockProduct& product) {
  constexpr int few_always = 16;  // whose weights come sooner than the others' blocks begin
  if (product.tokens <= few_always) return BlockLinearPath::few;
  const int some = some_cost(product), many = many_cost(product);
  if (product.tokens <= few_most_tokens && few_cost(product) <= std::min(some, many))
    return BlockLinearPath::few;
  return some <= many ? BlockLinearPath::some : BlockLinearPath::many;
}
// NVFP4 has a kernel for few and one for many. Blocks of the latter wait for their bytes where they are fewer
// than a quarter of the multiprocessors.
constexpr BlockLinearPath fastest_nvfp4_path(const BlockProduct& product) {
  const bool blocks_are_few = product.granules / many_item_granules < product.processors / 4;
  return product.tokens <= (blocks_are_few ? few_most_tokens : few_most_rows) ? BlockLinearPath::few
                                                                              : BlockLinearPath::many;
}

}  // namespace nibble
