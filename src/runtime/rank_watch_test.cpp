#include "runtime/rank_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

// Looks until it sees what it waits for.
bool sees(const RankWatch& watch, int rank, bool works) {
  for (int look = 0; look < 2000; ++look) {
    if (watch.look(rank).works == works) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(RankWatch, WhoComputesWorksAndWhoSleepsDoesNot) {
  RankWatch watch;
  enum { computes, sleeps, ends };
  std::atomic<int> order = computes;
  std::atomic<bool> seated = false;
  EXPECT_TRUE(watch.look(1).works && watch.look(1).cpu.empty())
      << "of a rank that has not begun nothing is known";
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
  EXPECT_FALSE(watch.look(1).works) << "its thread has ended";
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
    EXPECT_TRUE(watch.look(0).works);
    std::this_thread::sleep_for(milliseconds(1));
  }
  worker_ends = true;
  rank.join();
}

TEST(Stillness, CountsTheTimeInWhichSomebodyLooked) {
  struct Nobody final : PeerWatch {
    PeerSight look(int) const override { return PeerSight{.works = false, .beats = 0, .cpu = {}}; }
  } const nobody;
  const auto begin = Stillness::Clock::now();
  Stillness stillness(&nobody, 0, {.idle = milliseconds(1000)});
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
  Stillness unwatched(nullptr, 0, {.idle = milliseconds(1)});
  EXPECT_FALSE(unwatched.is_too_long(now + std::chrono::hours(1)));
}

// A watch whose member is told what to be seen as.
struct Told final : PeerWatch {
  PeerSight sight{.works = true, .beats = 0, .cpu = {milliseconds(5000), milliseconds(0)}};
  PeerSight look(int) const override { return sight; }
};

TEST(Stillness, IsTheCpuTimeOfAThreadWithoutABeatHoweverLongThatTakes) {
  Told told;
  auto now = Stillness::Clock::now();
  Stillness stillness(&told, 0, {.cpu = milliseconds(2000)});
  const auto look = [&] { return stillness.is_too_long(now += milliseconds(60)); };
  EXPECT_FALSE(look()) << "what it used before the wait does not count";
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(look()) << "others have its CPU";
  told.sight.cpu = {milliseconds(6900), milliseconds(1900)};
  EXPECT_FALSE(look()) << "no thread alone has used two seconds";
  ++told.sight.beats;
  EXPECT_FALSE(look());
  told.sight.cpu = {milliseconds(8800), milliseconds(1900)};
  EXPECT_FALSE(look()) << "a piece of work was done in between";
  told.sight.cpu = {milliseconds(8900), milliseconds(1900)};
  EXPECT_TRUE(look());
}

TEST(Stillness, RemembersWhenTheMemberGotOn) {
  Told told;
  const auto begin = Stillness::Clock::now();
  Stillness stillness(&told, 0, {.cpu = milliseconds(2000)});
  EXPECT_FALSE(stillness.is_too_long(begin + milliseconds(1000)));
  EXPECT_LT(stillness.last_beat_seen(), begin + milliseconds(500)) << "the first look tells nothing";
  ++told.sight.beats;
  EXPECT_FALSE(stillness.is_too_long(begin + milliseconds(2000)));
  EXPECT_EQ(stillness.last_beat_seen(), begin + milliseconds(2000));
}

TEST(Stillness, BeginsAnewWithWhoKeepsTheMember) {
  Told told;
  told.sight = {.works = false, .cpu = {}};
  auto now = Stillness::Clock::now();
  Stillness stillness(&told, 0, {.idle = milliseconds(500)});
  const auto look = [&] { return stillness.is_too_long(now += milliseconds(60)); };
  for (int i = 0; i < 7; ++i) ASSERT_FALSE(look());
  EXPECT_EQ(stillness.whom(), 0);
  told.sight.rank = 3;
  for (int i = 0; i < 8; ++i) ASSERT_FALSE(look()) << "the other has not been seen for long";
  EXPECT_EQ(stillness.whom(), 3);
  EXPECT_EQ(stillness.last_beat_seen(), now - 7 * milliseconds(60))
      << "it was seen to get on when it changed";
  EXPECT_TRUE(look() || look());
}

TEST(FirstRankWatch, SeesCpuTimeWithoutABeatFromTheFirstOfItsQuestionsOn) {
  Told told;
  auto now = Stillness::Clock::now();
  FirstRankWatch watch(told, milliseconds(1000));
  const auto asked = [&](std::chrono::milliseconds later) {
    return watch.computes_without_end(now += later);
  };
  EXPECT_FALSE(asked(milliseconds(500)));
  told.sight.cpu = {milliseconds(5900), milliseconds(0)};
  EXPECT_FALSE(asked(milliseconds(500)));
  ++told.sight.beats;
  EXPECT_FALSE(asked(milliseconds(500)));
  told.sight.cpu = {milliseconds(6800), milliseconds(0)};
  EXPECT_FALSE(asked(milliseconds(500))) << "a piece of work was done in between";
  told.sight.cpu = {milliseconds(9000), milliseconds(0)};
  EXPECT_FALSE(asked(std::chrono::minutes(1))) << "nobody saw a step that did not come back meanwhile";
  EXPECT_FALSE(asked(milliseconds(500)));
  told.sight.works = false;
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(asked(milliseconds(500))) << "it may wait for a mask";
  told.sight.works = true;
  told.sight.cpu = {milliseconds(10100), milliseconds(0)};
  EXPECT_TRUE(asked(milliseconds(500)));
}

// Two ranks meet; the first waits, and the second computes before it comes.
TEST(RankWatch, OfARankThatWaitsIsSeenWhomItWaitsFor) {
  RankWatch watch;
  const Group pair{{0, 1}};
  std::vector<Communicator> members =
      communicators_of(pair, 4096, {.watch = &watch, .world = &watch.world()}).value();
  std::atomic<bool> comes = false, seated = false;
  const auto meet = [&](Communicator& member) {
    watch.take_seat(member.member());
    if (member.member() == 1) {
      seated = true;
      while (!comes) continue;
    }
    EXPECT_TRUE(vote(member, "lunches", 1).ok());
  };
  std::thread first([&] { meet(members[0]); }), second([&] { meet(members[1]); });
  while (!seated || watch.look(0).rank != 1) std::this_thread::yield();
  EXPECT_TRUE(sees(watch, 0, true));
  comes = true;
  second.join();
  first.join();
  EXPECT_EQ(watch.look(0).rank, 0);
}

// A rank whose second thread computes: what the first sees of it with a limit of 200 ms of CPU time.
bool given_up_within(milliseconds patience, bool beats) {
  RankWatch watch;
  std::atomic<bool> ends = false, seated = false;
  std::thread rank([&] {
    ThreadPool pool(2);
    watch.add_workers(0, pool);
    watch.take_seat(0);
    seated = true;
    pool.parallel_for(1, [&](int, int) {
      while (!ends) {
        if (beats) pool.beat();
      }
    });
  });
  while (!seated) std::this_thread::yield();
  const auto begin = Stillness::Clock::now();
  Stillness stillness(&watch, 0, {.cpu = milliseconds(200)});
  bool given_up = false;
  while (!given_up && Stillness::Clock::now() - begin < patience) {
    given_up = stillness.is_too_long(Stillness::Clock::now());
    std::this_thread::sleep_for(milliseconds(5));
  }
  ends = true;
  rank.join();
  return given_up;
}

TEST(RankWatch, ARankInALoopThatDoesNotEndIsGivenUpAndOneThatGetsOnIsNot) {
  EXPECT_TRUE(given_up_within(std::chrono::minutes(1), false));
  EXPECT_FALSE(given_up_within(milliseconds(1500), true));
}

}  // namespace
}  // namespace nibble
