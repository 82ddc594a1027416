#include "ops/linear/cuda/dense_shapes.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

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
      {qkv, 512, {176, 2, 1, true}, 1, 0},
      {qkv, 640, {112, 2, 1}, 2, 0},
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
