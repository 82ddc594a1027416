#include "comm/leaves.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "comm/comm_test_util.h"

namespace nibble {
namespace {

TEST(Leaves, OfNinetyBlocksJoinToThoseOfFewerRanks) {
  std::array<std::int64_t, leaf_count> counts{};
  for (int i = 0; i < leaf_count; ++i)
    counts[static_cast<std::size_t>(i)] = leaf_begin(90, i + 1) - leaf_begin(90, i);
  EXPECT_EQ(counts, (std::array<std::int64_t, 8>{12, 11, 11, 11, 12, 11, 11, 11}));
  EXPECT_EQ(shard_of(90, 1, 4).begin, 23);
  EXPECT_EQ(shard_of(90, 1, 4).end, 45);
  EXPECT_EQ(shard_of(90, 0, 2).end, 45);
  EXPECT_EQ(shard_of(90, 0, 1).end, 90);
}

TEST(Leaves, CoverEverythingAsEvenlyAsWholeUnitsAllow) {
  for (std::int64_t units = 0; units < 300; ++units) {
    EXPECT_EQ(leaf_begin(units, 0), 0);
    EXPECT_EQ(leaf_begin(units, leaf_count), units);
    for (int i = 0; i < leaf_count; ++i) {
      const std::int64_t count = leaf_begin(units, i + 1) - leaf_begin(units, i);
      EXPECT_GE(count, units / leaf_count) << units;
      EXPECT_LE(count, (units + leaf_count - 1) / leaf_count) << units;
    }
  }
}

// A rank adds its own leaves first; the ranks' sums are added above them.
TEST(Leaves, AddToTheSameBitsOverAnyNumberOfRanks) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const std::vector<float> leaves = wide_floats(seed, leaf_count);
    const float one = tree_sum(leaf_count, [&](int i) { return leaves[static_cast<std::size_t>(i)]; });
    for (const int ranks : {2, 4, 8}) {
      const int each = leaf_count / ranks;
      const float several = tree_sum(ranks, [&](int rank) {
        return tree_sum(each, [&](int i) { return leaves[static_cast<std::size_t>(rank * each + i)]; });
      });
      EXPECT_EQ(std::memcmp(&one, &several, sizeof one), 0) << one << " " << several;
    }
  }
}

// What a transport that keeps -0.0f for itself rests on.
TEST(Leaves, NeverAddToMinusZero) {
  EXPECT_FALSE(std::signbit(tree_sum(8, [](int) { return -0.0f; })));
  EXPECT_FALSE(std::signbit(tree_sum(1, [](int) { return -0.0f; })));
  EXPECT_FALSE(std::signbit(tree_sum(2, [](int i) { return i == 0 ? 1.5f : -1.5f; })));
}

}  // namespace
}  // namespace nibble
