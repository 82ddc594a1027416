#include "ops/linear/cuda/block_paths.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

BlockLinearPath fp8_path(int rows, int tokens) { return fastest_fp8_path({rows / 16, tokens, 132}); }

// What was measured on an H200: projections of Qwen3.6 and Qwen3, outputs of attention, a shared expert's.
TEST(BlockPaths, AreThoseThatWereMeasuredToBeTheFastest) {
  for (const int rows : {1024, 2048, 5120, 12288}) {
    EXPECT_EQ(fp8_path(rows, 1), BlockLinearPath::few) << rows;
    EXPECT_EQ(fp8_path(rows, 16), BlockLinearPath::few) << rows;
    EXPECT_EQ(fp8_path(rows, 8192), BlockLinearPath::many) << rows;
  }
  EXPECT_EQ(fp8_path(12288, 32), BlockLinearPath::some);
  EXPECT_EQ(fp8_path(12288, 64), BlockLinearPath::some);
  EXPECT_EQ(fp8_path(12288, 128), BlockLinearPath::many);
  EXPECT_EQ(fp8_path(5120, 32), BlockLinearPath::some);
  EXPECT_EQ(fp8_path(5120, 128), BlockLinearPath::some);
  EXPECT_EQ(fp8_path(2048, 64), BlockLinearPath::few);
  EXPECT_EQ(fp8_path(2048, 128), BlockLinearPath::some);
  EXPECT_EQ(fp8_path(1024, 128), BlockLinearPath::few);
}

// However small: narrow products that run beside one count on it.
TEST(BlockPaths, OfMoreThan128RowsAreNeverTheOneForFew) {
  for (int rows = 16; rows <= 4096; rows *= 2) EXPECT_NE(fp8_path(rows, 129), BlockLinearPath::few) << rows;
}

TEST(BlockPaths, OfNvfp4TheManyTakeWhatBlocksEnoughShare) {
  EXPECT_EQ(fastest_nvfp4_path({320, 32, 132}), BlockLinearPath::few);
  EXPECT_EQ(fastest_nvfp4_path({320, 33, 132}), BlockLinearPath::many);
  EXPECT_EQ(fastest_nvfp4_path({128, 128, 132}), BlockLinearPath::few);
  EXPECT_EQ(fastest_nvfp4_path({128, 129, 132}), BlockLinearPath::many);
}

}  // namespace
}  // namespace nibble
