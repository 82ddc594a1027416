#include "runtime/rank_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

namespace nibble {
namespace {

constexpr RankThreads::Patience patience{.deadline = std::chrono::milliseconds(5000)};

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
  RankThreads threads(4, {.deadline = std::chrono::milliseconds(20)}, [&](int rank) {
    while (rank == 3 && !leave) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return rank == 0 ? internal_error("nobody came") : Status();
  });
  const std::string said(threads.run().message());
  EXPECT_TRUE(said.starts_with("rank 3 did not finish its step within ") &&
              said.ends_with(" ms of rank 0: nobody came"))
      << said;
  leave = true;
}

TEST(RankThreads, ARankThatOthersHaveGivenUpIsNotWaitedForAgain) {
  std::atomic<bool> leave = false;
  RankThreads threads(2, {.deadline = std::chrono::minutes(10)}, [&](int rank) {
    while (rank == 1 && !leave) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return rank == 0 ? internal_error("rank 1 did not come") : Status();
  });
  EXPECT_TRUE(threads.run().message().ends_with(" ms of rank 0: rank 1 did not come"));
  leave = true;
}

TEST(RankThreads, RankZeroIsAwayOnceAllOthersAreBack) {
  std::atomic<bool> first_may_go = false, last_may_go = false;
  RankThreads threads(3, patience, [&](int rank) {
    const std::atomic<bool>& may_go = rank == 0 ? first_may_go : last_may_go;
    while (rank != 1 && !may_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  });
  constexpr std::chrono::milliseconds some_time{30};
  EXPECT_EQ(threads.first_is_away().count(), 0) << "no step has begun";
  std::thread step([&] { EXPECT_TRUE(threads.run().ok()); });
  std::this_thread::sleep_for(some_time);
  EXPECT_EQ(threads.first_is_away().count(), 0) << "rank 2 is not back, either";
  last_may_go = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (threads.first_is_away() < some_time && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(threads.first_is_away(), some_time);
  first_may_go = true;
  step.join();
  EXPECT_EQ(threads.first_is_away().count(), 0) << "all are back";
}

// Says of some ranks that they stand still.
struct Watching final : PeerWatch {
  std::array<std::atomic<bool>, 8> still{};
  PeerSight look(int rank) const override {
    return PeerSight{.works = !still[static_cast<std::size_t>(rank)], .beats = 0, .cpu = {}};
  }
};

TEST(RankThreads, ARankThatStandsStillIsGivenUpLongBeforeTheDeadline) {
  Watching watch;
  watch.still[1] = true;
  std::atomic<bool> leave = false;
  RankThreads threads(2,
                      {.deadline = std::chrono::minutes(10),
                       .watch = &watch,
                       .stillness = {.idle = std::chrono::milliseconds(200)}},
                      [&](int rank) {
                        while (rank == 1 && !leave) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        return Status();
                      });
  EXPECT_TRUE(threads.run().message().starts_with("rank 1 did not finish its step within "));
  leave = true;
}

TEST(RankThreads, ASlowRankThatWorksIsWaitedFor) {
  const Watching watch;
  RankThreads threads(2,
                      {.deadline = std::chrono::minutes(10),
                       .watch = &watch,
                       .stillness = {.idle = std::chrono::milliseconds(50)}},
                      [&](int rank) {
                        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
                        return Status();
                      });
  EXPECT_TRUE(threads.run().ok());
}

}  // namespace
}  // namespace nibble
