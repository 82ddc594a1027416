#include "grammar/compile_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/thread_time.h"

namespace nibble {
namespace {

void compute(std::chrono::microseconds time) {
  const double begin = thread_cpu_us();
  while (thread_cpu_us() - begin < static_cast<double>(time.count())) {
  }
}

TEST(CompileClock, CountsWhatItsThreadComputesAndNotHowLongItWaits) {
  const CompileClock clock({.max_milliseconds = 20});
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_TRUE(clock.check().ok());
  EXPECT_GT(clock.rest().max_milliseconds, 10);
  compute(std::chrono::milliseconds(21));
  EXPECT_NE(clock.check().message().find("more than 20 ms of a CPU"), std::string::npos);
  EXPECT_EQ(clock.rest().max_milliseconds, 0);
}

TEST(CompileClock, EndsAtTheWallClockToo) {
  const CompileClock clock({.max_wall_milliseconds = 20});
  std::this_thread::sleep_for(std::chrono::milliseconds(21));
  EXPECT_NE(clock.check().message().find("20 ms by the wall clock"), std::string::npos);
  EXPECT_EQ(clock.rest().max_wall_milliseconds, 0);
}

}  // namespace
}  // namespace nibble
