#include "comm/rank.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace nibble {
namespace {

TEST(Rank, TakesItsDeviceAndItsShareOfTheCpus) {
  std::vector<int> cpus(10);
  std::iota(cpus.begin(), cpus.end(), 4);
  const auto ranks = ranks_of_host(4, std::array{3, 1, 0, 2}, cpus);
  ASSERT_TRUE(ranks.ok());
  ASSERT_EQ(ranks->size(), 4u);
  const Rank second = (*ranks).at(1);
  EXPECT_EQ(second, (Rank{.index = 1, .world = 4, .device = 1, .cpus = {7, 8, 9}}));
  std::vector<int> all;
  for (const Rank& rank : *ranks) all.insert(all.end(), rank.cpus.begin(), rank.cpus.end());
  EXPECT_EQ(all, cpus);
}

TEST(Rank, MayRunAnywhereWhereCpusAreFewerThanRanks) {
  const auto ranks = ranks_of_host(4, {}, std::array{0, 1});
  ASSERT_TRUE(ranks.ok());
  for (const Rank& rank : *ranks) {
    EXPECT_TRUE(rank.cpus.empty());
    EXPECT_EQ(rank.device, -1);
  }
}

TEST(Rank, IsRefusedWithoutADeviceAndOutsideTheLargestWorld) {
  EXPECT_NE(ranks_of_host(4, std::array{0, 1}, {}).status().message().find("take at most 2 ranks"),
            std::string::npos);
  for (const int world : {0, -1, 9}) {
    EXPECT_EQ(ranks_of_host(world, {}, {}).status().code(), StatusCode::invalid_argument) << world;
  }
}

TEST(Group, CoversTheWorldOnceInEitherShape) {
  for (const GroupShape shape : {GroupShape::neighbours, GroupShape::strided}) {
    for (const int world : {1, 2, 4, 8}) {
      for (int size = 1; size <= world; size *= 2) {
        const auto groups = groups_of_world(world, size, shape);
        ASSERT_TRUE(groups.ok());
        std::vector<int> seen(static_cast<std::size_t>(world));
        for (const Group& group : *groups) {
          EXPECT_EQ(group.size(), size);
          for (int i = 0; i < size; ++i) {
            const int rank = group.members[static_cast<std::size_t>(i)];
            ++seen[static_cast<std::size_t>(rank)];
            EXPECT_EQ(group.member_of(rank), i);
          }
        }
        EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(world), 1));
      }
    }
  }
}

TEST(Group, OfTheOtherShapeMeetsEachNeighbourGroupOnce) {
  const auto rows = groups_of_world(8, 2, GroupShape::neighbours);
  const auto columns = groups_of_world(8, 4, GroupShape::strided);
  EXPECT_EQ((*columns).at(1).members, (std::vector<int>{1, 3, 5, 7}));
  for (const Group& row : *rows) {
    for (const Group& column : *columns) {
      int both = 0;
      for (const int rank : row.members) both += column.member_of(rank) >= 0 ? 1 : 0;
      EXPECT_EQ(both, 1);
    }
  }
}

TEST(Group, MustDivideTheWorld) {
  const auto groups = groups_of_world(4, 3, GroupShape::neighbours);
  EXPECT_EQ(groups.status().message(), "groups of 3 ranks do not divide a world of 4");
  EXPECT_FALSE(groups_of_world(4, 0, GroupShape::strided).ok());
}

}  // namespace
}  // namespace nibble
