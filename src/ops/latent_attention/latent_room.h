// What latent attention on a GPU takes for its rows, which come some at a time: a plan counts by it, and the
// kernels' launches are cut by it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace nibble {

// Columns of a head's matrix, in whole groups.
constexpr std::int64_t latent_columns(std::int64_t columns) { return (columns + 63) / 64 * 64; }

// Rows of a launch, a multiple of 8 where there are more: what lies between its products stays in hundreds of
// megabytes.
constexpr int latent_rows_at_once(std::int64_t rows, std::int64_t heads) {
  constexpr std::int64_t most_queries = 65536, most_rows = 1024;
  const std::int64_t some = std::min(std::max<std::int64_t>(most_queries / heads / 8 * 8, 8), most_rows);
  return static_cast<int>(std::min(rows, some));
}

// Queries of a tile: neighbours over rows and heads of one sequence.
inline constexpr std::int64_t latent_tile = 64;
constexpr std::int64_t latent_tiles(std::int64_t queries) {
  return (queries + latent_tile - 1) / latent_tile;
}
// Splits of tiles that several blocks take, at most; queries of all these splits; and tiles that are cut so.
inline constexpr std::int64_t latent_most_partials = 1024, latent_partial_queries = 768 * latent_tile,
                              latent_most_cut_tiles = latent_most_partials / 2;

// Items of a launch's list, at most.
constexpr std::int64_t latent_most_items(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  const std::int64_t tiles = rows * latent_tiles(heads) + sequences;
  return tiles > latent_most_partials ? tiles : latent_most_partials;
}
inline constexpr std::int64_t latent_item_bytes = 32, latent_header_bytes = 16;
constexpr std::int64_t latent_work_bytes(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  return latent_header_bytes +
         (latent_most_items(rows, sequences, heads) + latent_most_cut_tiles) * latent_item_bytes;
}

// Of a query's partial total: its sums, level, weight, and two that keep partials at multiples of 16 bytes.
constexpr std::int64_t latent_partial(std::int64_t rank) { return latent_columns(rank) + 4; }
constexpr std::int64_t latent_partial_floats(std::int64_t rank) {
  return latent_partial_queries * latent_partial(rank);
}
// Floats that blocks keep of their tiles between splits.
constexpr std::int64_t latent_total_floats(std::int64_t processors) {
  constexpr std::int64_t most_rank = 512;
  return processors * latent_tile * most_rank;
}

}  // namespace nibble
