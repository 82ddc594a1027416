#include "comm/world.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "comm/collectives.h"
#include "comm/comm_test_util.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

// Four ranks that meet all together and in two pairs.
struct FourRanks {
  World world;
  std::vector<Communicator> all, first_pair, second_pair;

  explicit FourRanks(Communicator::Options in_all = {}, Communicator::Options in_pairs = {}) {
    in_all.world = in_pairs.world = &world;
    all = members_of(whole_world(4), 4096, in_all);
    first_pair = members_of(Group{{0, 1}}, 4096, in_pairs);
    second_pair = members_of(Group{{2, 3}}, 4096, in_pairs);
  }
  Communicator& pair_of(int rank) { return (rank < 2 ? first_pair : second_pair)[rank % 2]; }
};

// Ranks meet in pairs, then all together; `before` each rank may do something else or, false, stay away.
template <class Before>
std::vector<Status> meet(FourRanks& ranks, const Before& before) {
  std::vector<Status> statuses(4);
  on_each(ranks.all, [&](Communicator& member) {
    const int rank = member.member();
    if (!before(rank)) return;
    std::vector<float> values(10);
    Status& status = statuses[static_cast<std::size_t>(rank)];
    status = all_reduce_one_shot(ranks.pair_of(rank), values);
    if (status.ok()) status = all_reduce_one_shot(member, values);
  });
  return statuses;
}

TEST(World, WhoWaitsIsKeptByTheLastOfThoseItWaitsFor) {
  FourRanks ranks;
  World& world = ranks.world;
  EXPECT_EQ(world.kept_by(0), 0);
  world.wait_begins(0, {.group = 0, .member = 2, .step = 1});
  EXPECT_EQ(world.kept_by(0), 2);
  world.wait_begins(2, {.group = 2, .member = 1, .step = 1});
  EXPECT_EQ(world.kept_by(0), 3) << "the second of the second pair";
  EXPECT_EQ(world.kept_by(2), 3);
  world.wait_ends(2);
  EXPECT_EQ(world.kept_by(0), 2);
}

// A rank that is stopped between the end of a wait and its next step says that it waits.
TEST(World, WhomOneWaitedForKeepsItNoLongerOnceItHasCome) {
  FourRanks ranks;
  World& world = ranks.world;
  world.wait_begins(2, {.group = 2, .member = 1, .step = 1});
  std::thread partner([&] {
    std::vector<float> values(10);
    EXPECT_TRUE(all_reduce_one_shot(ranks.second_pair[1], values).ok());
  });
  while (world.kept_by(2) == 3) std::this_thread::yield();
  EXPECT_EQ(world.kept_by(2), 2);
  std::vector<float> values(10);
  EXPECT_TRUE(all_reduce_one_shot(ranks.second_pair[0], values).ok());
  partner.join();
}

TEST(World, RanksThatKeepEachOtherAreFoundToo) {
  FourRanks ranks;
  ranks.world.wait_begins(0, {.group = 1, .member = 1, .step = 1});
  ranks.world.wait_begins(1, {.group = 0, .member = 0, .step = 1});
  EXPECT_LT(ranks.world.kept_by(0), 2);
}

TEST(World, AFailureInOneGroupIsToldInAllAndNamesTheRankThatDidNotCome) {
  FourRanks ranks({.deadline = std::chrono::minutes(10), .first_deadline = std::chrono::minutes(10)},
                  {.deadline = milliseconds(500), .first_deadline = milliseconds(500)});
  const std::vector<Status> statuses = meet(ranks, [](int rank) { return rank != 3; });
  for (const int rank : {0, 1, 2}) {
    const std::string& message = statuses[static_cast<std::size_t>(rank)].message();
    EXPECT_NE(message.find(" for rank 3, which did not come"), std::string::npos) << message;
    EXPECT_EQ(message, statuses[0].message());
  }
  EXPECT_EQ(ranks.first_pair[0].failure().message(), statuses[0].message());
}

// Sees of a rank that waits whom it waits for. Rank 3 alone does anything, in its own time.
struct SlowRank final : PeerWatch {
  const World* world = nullptr;
  bool works = true;
  PeerSight look(int rank) const override {
    const int whom = world->kept_by(rank);
    return {.rank = whom, .works = works && whom == 3, .beats = 0, .cpu = {}};
  }
};

std::vector<Status> meet_a_slow_rank(SlowRank& watch) {
  const Communicator::Options options{.deadline = std::chrono::minutes(10),
                                      .first_deadline = std::chrono::minutes(10),
                                      .watch = &watch,
                                      .stillness = {.idle = milliseconds(150)}};
  FourRanks ranks(options, options);
  watch.world = &ranks.world;
  return meet(ranks, [](int rank) {
    if (rank == 3) std::this_thread::sleep_for(milliseconds(600));
    return true;
  });
}

TEST(World, ARankThatWaitsForASlowOneInItsOwnGroupIsNotGivenUpByOthers) {
  SlowRank watch;
  for (const Status& status : meet_a_slow_rank(watch)) EXPECT_TRUE(status.ok()) << status.message();
  watch.works = false;
  for (const Status& status : meet_a_slow_rank(watch))
    EXPECT_NE(status.message().find(" for rank 3, which did not come"), std::string::npos)
        << status.message();
}

}  // namespace
}  // namespace nibble
