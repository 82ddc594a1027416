#include "base/clock.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using namespace std::chrono_literals;

TEST(ManualClock, MovesOnlyWhenItIsMoved) {
  ManualClock clock(Clock::WallTime(1000s));
  EXPECT_EQ(clock.now(), 0ns);
  clock.advance(1500ms);
  EXPECT_EQ(clock.now(), 1500ms);
  EXPECT_EQ(clock.wall_time(), Clock::WallTime(1001500ms));
}

TEST(SystemClock, NeverGoesBackAndKnowsTheYear) {
  const SystemClock clock;
  const auto before = clock.now();
  EXPECT_GE(clock.now(), before);
  EXPECT_GT(clock.wall_time(), Clock::WallTime(std::chrono::sys_days(std::chrono::year(2025) / 1 / 1)));
}

}  // namespace
}  // namespace nibble
