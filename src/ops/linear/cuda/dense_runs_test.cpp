#include "ops/linear/cuda/dense_runs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble {
namespace {

void deals_every_chunk_once(int row_tiles, int token_tiles, int clusters, bool may_share) {
  const Deal deal = deal_tiles(row_tiles, token_tiles, clusters, may_share);
  const auto tiles = static_cast<std::size_t>(row_tiles * token_tiles);
  std::vector<int> chunks(tiles * dense_k_chunks), places(tiles);
  for (int cluster = 0; cluster < clusters; ++cluster) {
    ChunkRuns runs(deal, cluster);
    for (ChunkRun run; runs.next(run);) {
      for (int chunk = run.first; chunk < run.past; ++chunk)
        ++chunks.at(static_cast<std::size_t>(run.tile * dense_k_chunks + chunk));
      if (run.first > 0) continue;
      const Place place(deal, run.tile);
      ++places.at(static_cast<std::size_t>(place.row_tile * token_tiles + place.token_tile));
      if (!run.whole()) {
        EXPECT_EQ(deal.first_past(runs.shared_tile(run)), run.past);
      }
    }
  }
  EXPECT_EQ(chunks, std::vector<int>(chunks.size(), 1));
  EXPECT_EQ(places, std::vector<int>(places.size(), 1));
}

TEST(DenseRuns, DealEveryChunkOfEveryTileOnce) {
  for (const int clusters : {1, 2, 5, 66}) {
    for (const int row_tiles : {1, 12, 23}) {
      for (const int token_tiles : {1, 3, 17}) {
        SCOPED_TRACE(std::to_string(row_tiles) + " x " + std::to_string(token_tiles) + " tiles, " +
                     std::to_string(clusters) + " clusters");
        deals_every_chunk_once(row_tiles, token_tiles, clusters, false);
        deals_every_chunk_once(row_tiles, token_tiles, clusters, true);
      }
    }
  }
}

}  // namespace
}  // namespace nibble
