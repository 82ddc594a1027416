#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace nibble {
namespace {

TEST(ThreadPool, EveryIndexIsRunOnceWhateverTheSizes) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int n : {0, 1, 2, 6, 7, 8, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(n));
      pool.parallel_for(n, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
      });
      for (int count : runs) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, PiecesAreTheSameRangesEveryTime) {
  ThreadPool pool(3);
  std::vector<int> first(100), again(100);  // where the piece of each index begins
  const auto note = [&](std::vector<int>& begins) {
    pool.parallel_for(100, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) begins[static_cast<std::size_t>(i)] = begin;
    });
  };
  note(first);
  for (int i = 0; i < 200; ++i) {
    note(again);
    ASSERT_EQ(first, again);
  }
  EXPECT_EQ(first.front(), 0);
  EXPECT_EQ(first.back(), 95);
}

TEST(ThreadPool, SharesRunSideBySide) {
  ThreadPool pool(2);
  // Each share waits for the other's mark: it ends only if two threads are at work.
  std::atomic<bool> low = false, high = false;
  pool.parallel_for(2, [&](int begin, int) {
    (begin == 0 ? low : high) = true;
    while (!low || !high) std::this_thread::yield();
  });
  EXPECT_TRUE(low && high);
}

TEST(ThreadPool, WhoIsHeldUpLosesAllButOnePieceToTheOthers) {
  ThreadPool pool(2);
  // Index 0 is the caller's first piece; it does not end before every other index has.
  std::atomic<int> others = 0;
  pool.parallel_for(8, [&](int begin, int end) {
    ASSERT_EQ(end, begin + 1);
    if (begin > 0) {
      ++others;
    } else {
      while (others < 7) std::this_thread::yield();
    }
  });
  EXPECT_EQ(others, 7);
}

TEST(ThreadPool, WritesOfOneRunAreSeenByTheNext) {
  ThreadPool pool(4);
  std::vector<int> from(64), to(64);
  std::iota(from.begin(), from.end(), 0);
  for (int round = 0; round < 300; ++round) {
    pool.parallel_for(64, [&](int begin, int end) {
      for (int i = begin; i < end; ++i)
        to[static_cast<std::size_t>(i)] = from[static_cast<std::size_t>(63 - i)] + 1;
    });
    std::swap(from, to);
  }
  for (int i = 0; i < 64; ++i) EXPECT_EQ(from[static_cast<std::size_t>(i)], i + 300);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum = 0;
    pool.parallel_for(10, [&](int begin, int end) { sum += end - begin; });
    EXPECT_EQ(sum, 10);
  }
}

TEST(ThreadPool, ZeroMeansAsManyAsCanRun) {
  EXPECT_EQ(ThreadPool(0).size(), usable_threads());
  EXPECT_GE(usable_threads(), 1);
  EXPECT_LE(usable_threads(), static_cast<int>(allowed_cpus().size()));
}

TEST(ThreadPool, PinsOnlyWhereItIsAskedToAndNoOtherPoolHasPinned) {
  const int cpus = static_cast<int>(allowed_cpus().size());
  EXPECT_TRUE(ThreadPool(cpus).pinned_to().empty());
  EXPECT_TRUE(ThreadPool(cpus + 1, ThreadPool::Pinning::one_cpu_each).pinned_to().empty())
      << "more than CPUs";
  // Other processes of nibble claim CPUs at any time, and then there may be none for both pools.
  bool others_claim = false;
  for (int attempt = 0; cpus >= 2 && attempt < 20; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const ThreadPool first(2, ThreadPool::Pinning::one_cpu_each),
        second(2, ThreadPool::Pinning::one_cpu_each);
    const std::size_t own = first.pinned_to().size() + second.pinned_to().size();
    others_claim = others_claim || claimed_cpus().size() > own;
    if (own < 2) continue;
    ASSERT_EQ(own, 2u);
    EXPECT_NE(first.pinned_to(), second.pinned_to());
    const ThreadPool all(cpus, ThreadPool::Pinning::one_cpu_each);
    EXPECT_TRUE(all.pinned_to().empty()) << "two CPUs are claimed, and " << cpus - 1 << " were wanted";
    return;
  }
  if (cpus < 2 || others_claim) GTEST_SKIP() << "needs two CPUs that no other process of nibble claims";
  FAIL() << "nobody else claims a CPU, and two pools found none";
}

TEST(ThreadPoolDeathTest, NestedUseIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        ThreadPool pool(1);
        pool.parallel_for(1, [&](int, int) { pool.parallel_for(1, [](int, int) {}); });
      },
      "one parallel_for at a time");
}

TEST(ThreadPool, BeatsWithEveryRunAndWithinALongPiece) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const std::uint64_t before = pool.beats();
    pool.parallel_for(1, [](int, int) {});
    EXPECT_EQ(pool.beats(), before + 1);
    pool.parallel_for(1, [&](int, int) {
      WorkMeter meter(pool);
      for (int i = 0; i < 8; ++i) meter.add(WorkMeter::products_a_beat / 4);
      EXPECT_EQ(pool.beats(), before + 3) << "two beats' work";
    });
    pool.parallel_for(100, [](int, int) {});
    EXPECT_GT(pool.beats(), before + 4);
  }
}

}  // namespace
}  // namespace nibble
