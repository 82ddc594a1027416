// On a GPU: grids whose blocks wait for each other have places for all their blocks.
#include <set>

#include "ops/cuda/device_test_util.h"
#include "ops/cuda/waiting_grids.h"

namespace nibble {
namespace {

TEST_F(OnTheGpu, AllBlocksOfGridsThatWaitForEachOtherHavePlaces) {
  const WaitingGrids grids = waiting_grids();
  EXPECT_TRUE(check_places(grids).ok()) << check_places(grids).message();
  std::set<std::string_view> kernels;
  for (const WaitingGrid& grid : grids) {
    kernels.insert(grid.kernel);
    EXPECT_GT(grid.blocks, 0) << grid.kernel;
  }
  EXPECT_EQ(kernels,
            (std::set<std::string_view>{"dispatch_few_rows", "gather_few_products", "gather_few_tokens",
                                        "shared_expert", "sm90_attention_few", "sm90_bf16_linear_few",
                                        "sm90_bf16_linear_normed", "sm90_bf16_peer_linear", "sm90_moe_decode",
                                        "sm90_moe_many", "sm90_moe_row", "sm90_moe_some"}));
}

#ifndef NIBBLE_GPU_EMULATION  // which counts no registers
// Of two that came to one multiprocessor the launch would take twice as long.
TEST_F(OnTheGpu, ABlockOfARowsExpertsIsAloneOnItsMultiprocessor) {
  for (const WaitingGrid& grid : waiting_grids()) {
    if (grid.kernel != "sm90_moe_row") continue;
    EXPECT_EQ(grid.places, grid.blocks);
  }
}
#endif

TEST(WaitingGrids, AGridWithMoreBlocksThanPlacesIsRefusedByNameAndNumbers) {
  EXPECT_TRUE(check_places({{"first", 132, 132}, {"second", 114, 228}}).ok());
  const Status refused = check_places({{"first", 132, 132}, {"second", 156, 78}});
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_NE(refused.message().find("the 156 blocks of second wait for each other"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("places for 78"), std::string::npos) << refused.message();
}

#ifdef NIBBLE_GPU_EMULATION
TEST(WaitingGrids, ADeviceOfFewRegistersLacksPlaces) {
  emulation::most_threads = 512;
  const Status refused = check_places(waiting_grids());
  emulation::most_threads = 2048;
  // Two blocks of 288 threads.
  EXPECT_NE(refused.message().find("the 8 blocks of sm90_attention_few"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("places for 4"), std::string::npos) << refused.message();
}
#endif

}  // namespace
}  // namespace nibble
