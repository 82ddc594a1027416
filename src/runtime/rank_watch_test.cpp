#include "runtime/rank_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace nibble {
namespace {

using std::chrono::milliseconds;

// Looks until it sees what it waits for.
bool sees(const RankWatch& watch, int rank, bool works) {
  for (int look = 0; look < 2000; ++look) {
    if (watch.works(rank) == works) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(RankWatch, WhoComputesWorksAndWhoSleepsDoesNot) {
  RankWatch watch;
  enum { computes, sleeps, ends };
  std::atomic<int> order = computes;
  std::atomic<bool> seated = false;
  EXPECT_TRUE(watch.works(1)) << "of a rank that has not begun nothing is known";
  std::thread rank([&] {
    watch.take_seat(1);
    seated = true;
    while (order != ends) {
      if (order == sleeps) std::this_thread::sleep_for(milliseconds(20));
    }
  });
  while (!seated) std::this_thread::yield();
  EXPECT_TRUE(sees(watch, 1, true));
  order = sleeps;
  EXPECT_TRUE(sees(watch, 1, false));
  order = computes;
  EXPECT_TRUE(sees(watch, 1, true));
  order = ends;
  rank.join();
  EXPECT_FALSE(watch.works(1)) << "its thread has ended";
}

TEST(RankWatch, ARankWorksAsLongAsSomeThreadOfItsPoolDoes) {
  RankWatch watch;
  std::atomic<bool> worker_ends = false, seated = false;
  std::thread rank([&] {
    ThreadPool pool(2);
    watch.add_workers(0, pool);
    watch.take_seat(0);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> begun = 0;
    pool.parallel_for(2, [&](int, int) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
      seated = true;
      while (!worker_ends) {
        if (std::this_thread::get_id() == caller) std::this_thread::sleep_for(milliseconds(5));
      }
    });
  });
  while (!seated) std::this_thread::yield();
  for (int look = 0; look < 50; ++look) {
    EXPECT_TRUE(watch.works(0));
    std::this_thread::sleep_for(milliseconds(1));
  }
  worker_ends = true;
  rank.join();
}

TEST(Stillness, CountsTheTimeInWhichSomebodyLooked) {
  struct Nobody final : PeerWatch {
    bool works(int) const override { return false; }
  } const nobody;
  const auto begin = Stillness::Clock::now();
  Stillness stillness(&nobody, 0, milliseconds(1000));
  // Stopped for an hour, all together.
  EXPECT_FALSE(stillness.is_too_long(begin + std::chrono::hours(1)));
  auto now = begin + std::chrono::hours(1);
  int looks = 0;
  while (!stillness.is_too_long(now)) {
    now += milliseconds(60);
    ++looks;
  }
  EXPECT_GE(looks, 14);
  EXPECT_LE(looks, 17);
  Stillness unwatched(nullptr, 0, milliseconds(1));
  EXPECT_FALSE(unwatched.is_too_long(now + std::chrono::hours(1)));
}

}  // namespace
}  // namespace nibble
