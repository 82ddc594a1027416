#include "ops/moe/cuda/moe_many_tiles.cuh"

#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr MoeManyWidths of_few = moe_many_widths_of_few, of_some = moe_many_widths_of_some,
                        of_many = moe_many_widths_of_many;

TEST(MoeManyCut, HasEveryTokenInOneTileAndAllTilesFullButTheLast) {
  for (const MoeManyWidths& widths : {of_few, of_some, of_many}) {
    for (int tokens = 1; tokens <= 9000; ++tokens) {
      const MoeManyCut cut(widths, tokens);
      int placed = 0;
      for (int tile = 0; tile < cut.tiles; ++tile) {
        ASSERT_EQ(cut.places_before(tile), placed) << tokens << " tokens, tile " << tile;
        const int width = cut.width_of(tile);
        ASSERT_EQ(widths.holding(width), width) << "one that there is code for";
        placed += width;
        ASSERT_EQ(placed >= tokens, tile + 1 == cut.tiles) << tokens << " tokens, tile " << tile;
      }
    }
  }
}

TEST(MoeManyCut, TakesAsFewTilesAsWillDoAndStaysWithinTheRoomForThem) {
  for (const MoeManyWidths& widths : {of_few, of_some, of_many}) {
    EXPECT_TRUE(widths.fit());
    for (int tokens = 1; tokens <= 9000; ++tokens) {
      const MoeManyCut cut(widths, tokens);
      ASSERT_EQ(cut.tiles, (tokens + widths.largest() - 1) / widths.largest());
      ASSERT_LE(cut.tiles, moe_many_tiles(tokens, 1));
      const int last = cut.places_before(cut.tiles - 1);
      ASSERT_LE(last + widths.holding(tokens - last), moe_many_rows(tokens, 1));
    }
  }
}

TEST(MoeManyCut, HasEqualTilesRatherThanASmallRest) {
  const MoeManyCut cut(of_many, 1024);  // not 6 of 160 and one of 64
  EXPECT_EQ(cut.tiles, 7);
  EXPECT_EQ(cut.wide, 1);
  EXPECT_EQ(cut.width_of(0), 160);
  EXPECT_EQ(cut.width_of(6), 144);
  EXPECT_EQ(cut.places_before(7), 1024);
  const MoeManyCut two(of_few, 41);
  EXPECT_EQ(two.tiles, 2);
  EXPECT_EQ(two.width_of(0), 24);
  EXPECT_EQ(MoeManyCut(of_few, 0).tiles, 0);
}

}  // namespace
}  // namespace nibble
