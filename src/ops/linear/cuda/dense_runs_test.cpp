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

constexpr int processors = 132;
constexpr DenseShape qkv{5120, 2880}, attention_output{2880, 4096}, router{128, 2880};

TEST(DenseManyShapes, CostLessThanAnyOtherShapeAndLeaveRoomForWhatIsShared) {
  for (const DenseShape& weights : {qkv, attention_output, router}) {
    for (int tokens = 1; tokens <= 8192; tokens += 31) {
      const DenseManyWork work{weights, tokens, processors};
      const DenseManyChoice best = cheapest_deal(work);
      for (std::size_t i = 0; i < dense_many_shapes.size(); ++i) {
        const DenseManyShape& shape = dense_many_shapes[i];
        const DenseManyChoice other = cheapest_deal(work, i);
        EXPECT_LE(best.cost, other.cost) << tokens << " tokens, columns " << shape.columns;
        EXPECT_LE(other.deal.shared_tiles * 2, other.deal.clusters);
        EXPECT_GE(other.deal.token_tiles * shape.columns * shape.cluster_tokens, tokens);
      }
    }
  }
}

struct Chosen {
  DenseShape weights;
  int tokens;
  DenseManyShape shape;
  int rounds, shared_tiles;
};

TEST(DenseManyShapes, AreNarrowerWhereWideTilesWouldLeaveARoundHalfEmpty) {
  const Chosen all[] = {
      {qkv, 160, {64, 2, 1}, 1, 0},
      {qkv, 512, {96, 1, 2}, 2, 0},
      {qkv, 1024, {128, 1, 2}, 3, 0},
      {qkv, 1280, {144, 2, 1}, 3, 0},
      {qkv, 8192, {160, 2, 1}, 16, 0},
      {attention_output, 320, {64, 2, 1}, 1, 0},
      {attention_output, 1024, {96, 2, 1}, 2, 0},
      {attention_output, 8192, {160, 1, 2}, 9, 4},
      {router, 8192, {64, 1, 2}, 1, 0},
  };
  for (const Chosen& expected : all) {
    SCOPED_TRACE(std::to_string(expected.weights.rows) + " x " + std::to_string(expected.weights.cols) +
                 " by " + std::to_string(expected.tokens));
    const DenseManyChoice choice = cheapest_deal({expected.weights, expected.tokens, processors});
    const DenseManyShape& shape = dense_many_shapes[choice.shape];
    EXPECT_EQ(shape.columns, expected.shape.columns);
    EXPECT_EQ(shape.cluster_rows, expected.shape.cluster_rows);
    EXPECT_EQ(shape.cluster_tokens, expected.shape.cluster_tokens);
    EXPECT_EQ(choice.deal.rounds, expected.rounds);
    EXPECT_EQ(choice.deal.shared_tiles, expected.shared_tiles);
  }
}

}  // namespace
}  // namespace nibble
