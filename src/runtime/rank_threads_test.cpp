#include "runtime/rank_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

namespace nibble {
namespace {

constexpr std::chrono::milliseconds patience(5000);

TEST(RankThreads, RunEveryRankOnceAStep) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::array<std::atomic<int>, 8> steps{};
    RankThreads threads(ranks, patience, [&](int rank) {
      ++steps[static_cast<std::size_t>(rank)];
      return Status();
    });
    for (int step = 0; step < 300; ++step) ASSERT_TRUE(threads.run().ok());
    for (int rank = 0; rank < 8; ++rank)
      EXPECT_EQ(steps[static_cast<std::size_t>(rank)], rank < ranks ? 300 : 0) << ranks;
  }
}

TEST(RankThreads, AnyRanksErrorIsTheSteps) {
  RankThreads threads(4, patience,
                      [&](int rank) { return rank == 2 ? internal_error("rank 2 broke") : Status(); });
  EXPECT_EQ(threads.run().message(), "rank 2 broke");
}

TEST(RankThreads, ARankThatDoesNotComeBackIsNamed) {
  std::atomic<bool> leave = false;
  RankThreads threads(4, std::chrono::milliseconds(20), [&](int rank) {
    while (rank == 3 && !leave) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return rank == 0 ? internal_error("nobody came") : Status();
  });
  EXPECT_EQ(threads.run().message(), "rank 3 did not finish its step within 20 ms of rank 0: nobody came");
  leave = true;
}

}  // namespace
}  // namespace nibble
