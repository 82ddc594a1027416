#include "sched/owner_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

std::vector<int> order_of(std::vector<OwnerFacts> owners) {
  sort_owners(owners);
  std::vector<int> order;
  for (const OwnerFacts& each : owners) order.push_back(each.index);
  return order;
}

TEST(OwnerChoice, FewestSequencesThenFewestPagesThenTheFirst) {
  EXPECT_EQ(order_of({{0, 0, 2, 1}, {1, 0, 1, 9}, {2, 0, 1, 8}, {3, 0, 1, 8}}),
            (std::vector<int>{2, 3, 1, 0}));
}

TEST(OwnerChoice, AHitGoesToItsOwner) {
  EXPECT_EQ(order_of({{0, 0, 0, 0}, {1, 32, 3, 50}, {2, 16, 1, 5}}), (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(order_of({{0, 32, 2, 9}, {1, 32, 1, 9}}), (std::vector<int>{1, 0})) << "of two the less loaded";
}

TEST(OwnerChoice, AnOwnerFarAheadGetsNoMoreForItsPrefix) {
  EXPECT_EQ(order_of({{0, 0, 0, 0}, {1, 32, 4, 50}}), (std::vector<int>{0, 1}));
  EXPECT_EQ(order_of({{0, 0, 0, 0}, {1, 32, 4, 50}, {2, 16, 3, 40}}), (std::vector<int>{2, 0, 1}));
}

}  // namespace
}  // namespace nibble
