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
constexpr int latent_tile(std::int64_t heads) { return heads <= 32 ? 32 : 64; }
// Splits of tiles that several blocks take, at most, and tiles that are cut so.
inline constexpr int latent_most_partials = 512, latent_most_cut_tiles = latent_most_partials / 2;

// Items of a launch's list, at most.
constexpr std::int64_t latent_most_items(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  const std::int64_t of_row = (heads + latent_tile(heads) - 1) / latent_tile(heads);
  const std::int64_t tiles = rows * of_row + sequences;
  return tiles > latent_most_partials ? tiles : latent_most_partials;
}
inline constexpr std::int64_t latent_item_bytes = 32, latent_header_bytes = 16;
constexpr std::int64_t latent_work_bytes(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  return latent_header_bytes +
         (latent_most_items(rows, sequences, heads) + latent_most_cut_tiles) * latent_item_bytes;
}

// Floats that blocks keep of their tiles between splits; of smaller tiles they lie in registers.
constexpr std::int64_t latent_total_floats(std::int64_t processors, std::int64_t heads) {
  constexpr std::int64_t threads = 256;
  return latent_tile(heads) == 32 ? 0 : processors * (latent_tile(heads) / 16) * 8 * 4 * threads;
}
// Of a query's partial total: its sums, level, weight, and two that keep partials at multiples of 16 bytes.
constexpr std::int64_t latent_partial(std::int64_t rank) { return latent_columns(rank) + 4; }
constexpr std::int64_t latent_partial_floats(std::int64_t heads, std::int64_t rank) {
  return latent_most_partials * latent_tile(heads) * latent_partial(rank);
}

}  // namespace nibble
