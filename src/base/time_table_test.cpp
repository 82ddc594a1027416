#include "base/time_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace nibble {
namespace {

TEST(TimeTable, SumsByNameInTheOrderOfFirstUse) {
  TimeTable table, other;
  table.add("b", 1.0);
  table.add("a", 2.0);
  other.add("b", 0.5, 3);
  table.add(other);
  ASSERT_EQ(table.rows().size(), 2u);
  EXPECT_EQ(table.rows()[0].name, "b");
  EXPECT_EQ(table.rows()[0].seconds, 1.5);
  EXPECT_EQ(table.rows()[0].calls, 4);
  EXPECT_EQ(table.rows()[1].name, "a");
  table.clear();
  EXPECT_TRUE(table.rows().empty());
}

TEST(TimedScope, AddsItsLifetimeWhereSomebodyAsks) {
  TimeTable table;
  {
    const TimedScope scope(&table, "sleep"), nobody_asks(nullptr, "nothing");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(table.rows().size(), 1u);
  EXPECT_GE(table.rows()[0].seconds, 0.005);
  EXPECT_EQ(table.rows()[0].calls, 1);
}

}  // namespace
}  // namespace nibble
