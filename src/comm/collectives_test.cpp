#include "comm/collectives.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "comm/comm_test_util.h"
#include "comm/leaves.h"

namespace nibble {
namespace {

using AllReduce = Status (*)(Communicator&, std::span<float>);
constexpr AllReduce all_reduces[] = {all_reduce_one_shot, all_reduce_two_shot};

std::vector<float> sum_of(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum(parts[0].size());
  for (std::size_t at = 0; at < sum.size(); ++at) {
    sum[at] = tree_sum(static_cast<int>(parts.size()),
                       [&](int i) { return parts[static_cast<std::size_t>(i)][at]; });
  }
  return sum;
}

std::vector<std::vector<float>> parts_of(unsigned seed, int ranks, std::size_t count) {
  std::vector<std::vector<float>> parts;
  for (int i = 0; i < ranks; ++i) parts.push_back(wide_floats(seed * 8 + static_cast<unsigned>(i), count));
  return parts;
}

TEST(AllReduceOnTheCpu, GivesTheTreesBitsOnEveryRankForAnySize) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    unsigned seed = 1;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1024},
                                    std::size_t{1025}, std::size_t{5000}}) {
      const auto parts = parts_of(++seed, ranks, count);
      const std::vector<float> expected = sum_of(parts);
      for (const AllReduce all_reduce : all_reduces) {
        on_each(members, [&](Communicator& member) {
          std::vector<float> values = parts[static_cast<std::size_t>(member.member())];
          const Status status = all_reduce(member, values);
          EXPECT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(same_bits(values, expected)) << ranks << " ranks, " << count;
        });
      }
    }
  }
}

// Eight leaves over one, two, four and eight ranks.
TEST(AllReduceOnTheCpu, GivesTheSameBitsOverAnyNumberOfRanks) {
  constexpr std::size_t count = 3000;
  const auto leaves = parts_of(9, leaf_count, count);
  const std::vector<float> one = sum_of(leaves);
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    for (const AllReduce all_reduce : all_reduces) {
      on_each(members, [&](Communicator& member) {
        const int each = leaf_count / ranks;
        const auto first = leaves.begin() + member.member() * each;
        std::vector<float> values = sum_of({first, first + each});
        EXPECT_TRUE(all_reduce(member, values).ok());
        EXPECT_TRUE(same_bits(values, one)) << ranks;
      });
    }
  }
}

TEST(AllReduceOnTheCpu, TakesNanInfinityAndMinusZeroForData) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<Communicator> members = members_of(whole_world(2), 4096);
  for (const AllReduce all_reduce : all_reduces) {
    on_each(members, [&](Communicator& member) {
      std::vector<float> values = member.member() == 0
                                      ? std::vector<float>{nan, infinity, infinity, -0.0f, -0.0f}
                                      : std::vector<float>{1, 1, -infinity, -0.0f, 2};
      EXPECT_TRUE(all_reduce(member, values).ok());
      EXPECT_TRUE(std::isnan(values[0]));
      EXPECT_EQ(values[1], infinity);
      EXPECT_TRUE(std::isnan(values[2]));
      EXPECT_FALSE(std::signbit(values[3]));
      EXPECT_EQ(values[4], 2);
    });
  }
}

TEST(ReduceScatterOnTheCpu, GivesEachRankItsPartOfTheSum) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    for (const std::size_t each : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{2000}}) {
      const auto parts = parts_of(static_cast<unsigned>(each), ranks, each * static_cast<std::size_t>(ranks));
      const std::vector<float> expected = sum_of(parts);
      on_each(members, [&](Communicator& member) {
        const std::size_t own = static_cast<std::size_t>(member.member());
        std::vector<float> out(each);
        EXPECT_TRUE(reduce_scatter(member, parts[own], out).ok());
        EXPECT_TRUE(same_bits(out, std::span(expected).subspan(own * each, each)));
      });
    }
  }
}

TEST(AllGatherOnTheCpu, GivesEverybodysBytesInOrder) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, std::size_t{4096}, std::size_t{9001}}) {
      on_each(members, [&](Communicator& member) {
        const std::vector<std::byte> mine(bytes, static_cast<std::byte>(member.member() + 1));
        std::vector<std::byte> all(bytes * static_cast<std::size_t>(ranks));
        EXPECT_TRUE(all_gather(member, mine, all).ok());
        for (std::size_t at = 0; at < all.size(); ++at)
          ASSERT_EQ(all[at], static_cast<std::byte>(at / bytes + 1));
      });
    }
  }
}

TEST(CollectivesOnTheCpu, RefuseSizesThatDoNotFit) {
  std::vector<Communicator> members = members_of(whole_world(1), 4096);
  std::vector<float> values(3), out(2);
  EXPECT_EQ(reduce_scatter(members[0], values, out).message(),
            "a reduce_scatter over 1 ranks takes 2 values for 2 results, not 3");
  std::vector<std::byte> bytes(3), all(2);
  EXPECT_FALSE(all_gather(members[0], bytes, all).ok());
  EXPECT_EQ(members[0].steps(), 0u);
}

// Mixed kinds and sizes without a pause, over the world and over groups of it in turn.
TEST(CollectivesOnTheCpu, StandManyCallsOfChangingKindSizeAndGroup) {
  constexpr int ranks = 4, calls = 5000;
  std::vector<Communicator> world = members_of(whole_world(ranks), 4096);
  const auto rows = *groups_of_world(ranks, 2, GroupShape::neighbours);
  const auto columns = *groups_of_world(ranks, 2, GroupShape::strided);
  std::vector<std::vector<Communicator>> of_groups;
  for (const auto* groups : {&rows, &columns}) {
    for (const Group& group : *groups) of_groups.push_back(members_of(group, 4096));
  }
  const auto communicator_of = [&](int rank, unsigned which) -> Communicator& {
    if (which == 0) return world[static_cast<std::size_t>(rank)];
    for (std::size_t i = (which - 1) * 2; i < which * 2; ++i) {
      const int member = of_groups[i][0].group().member_of(rank);
      if (member >= 0) return of_groups[i][static_cast<std::size_t>(member)];
    }
    std::abort();
  };
  on_each(world, [&](Communicator& own) {
    const int rank = own.member();
    std::mt19937 random(5);  // the same draws on every rank
    for (int call = 0; call < calls; ++call) {
      Communicator& member = communicator_of(rank, random() % 3);
      const std::size_t count = random() % 1500;
      const unsigned kind = random() % 4;
      const auto value = [&](int of_rank, std::size_t at) {
        return static_cast<float>(of_rank + 1) * static_cast<float>(at % 61) + static_cast<float>(call % 7);
      };
      const auto sum_at = [&](std::size_t at) {
        return tree_sum(member.size(), [&](int i) {
          return value(member.group().members[static_cast<std::size_t>(i)], at);
        });
      };
      const std::size_t size = static_cast<std::size_t>(member.size());
      const std::size_t all = kind < 2 ? count : count * size;
      std::vector<float> values(all), out(kind < 2 ? 0 : kind == 2 ? count : all * size);
      for (std::size_t at = 0; at < all; ++at) values[at] = value(rank, at);
      std::size_t wrong = 0;
      if (kind < 2) {
        ASSERT_TRUE(all_reduces[kind](member, values).ok());
        for (std::size_t at = 0; at < all; ++at) wrong += values[at] != sum_at(at);
      } else if (kind == 2) {
        ASSERT_TRUE(reduce_scatter(member, values, out).ok());
        const std::size_t first = count * static_cast<std::size_t>(member.member());
        for (std::size_t at = 0; at < count; ++at) wrong += out[at] != sum_at(first + at);
      } else {
        ASSERT_TRUE(all_gather(member, std::as_bytes(std::span<const float>(values)),
                               std::as_writable_bytes(std::span(out)))
                        .ok());
        for (std::size_t at = 0; at < out.size() && all > 0; ++at)
          wrong += out[at] != value(member.group().members[at / all], at % all);
      }
      ASSERT_EQ(wrong, 0u) << "call " << call << " of kind " << kind << ", " << count;
    }
  });
}

}  // namespace
}  // namespace nibble
