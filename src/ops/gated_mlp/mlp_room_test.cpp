#include "ops/gated_mlp/mlp_room.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(MlpRoom, AStepsRowsGoThroughAtOnceWhereTheyAreFew) {
  for (const int width : {512, 18432}) EXPECT_EQ(mlp_rows_at_once(1000, width), 1000);
}

TEST(MlpRoom, WideLayersTakeFewerRowsAtOnce) {
  EXPECT_EQ(mlp_rows_at_once(8192, 512), 4096);
  EXPECT_EQ(mlp_rows_at_once(8192, 1024), 2048);
  EXPECT_EQ(mlp_rows_at_once(8192, 1025), 1024);
  EXPECT_EQ(mlp_rows_at_once(8192, 18432), 1024);
}

}  // namespace
}  // namespace nibble
