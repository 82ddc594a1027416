#include "hub/retry.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using std::chrono::milliseconds;

TEST(Retry, WaitsDoubleUpToALongestAndEnd) {
  EXPECT_EQ(next_wait(1, {}, 1), milliseconds(500));
  EXPECT_EQ(next_wait(2, {}, 1), milliseconds(1000));
  EXPECT_EQ(next_wait(1, {}, 0), milliseconds(250));
  milliseconds last{0};
  for (int failures = 1; failures < kMostFruitlessTries; ++failures) {
    const milliseconds wait = *next_wait(failures, {}, 0.5);
    EXPECT_GE(wait, last);
    EXPECT_LE(wait, kLongestWait);
    last = wait;
  }
  EXPECT_FALSE(next_wait(kMostFruitlessTries, {}, 0.5));
  EXPECT_FALSE(next_wait(1'000'000, {}, 0.5));
}

TEST(Retry, AServerIsWaitedForAsLongAsItAsksWithinReason) {
  EXPECT_EQ(next_wait(1, milliseconds(7000), 0), milliseconds(7000));
  EXPECT_FALSE(next_wait(1, kLongestAskedWait + milliseconds(1), 0));
}

TEST(Retry, AskedForInSecondsAsADateOrAsALimit) {
  constexpr std::time_t now = 1'445'412'470;  // Wed, 21 Oct 2015 07:27:50 GMT
  EXPECT_EQ(asked_wait("12", {}, now), milliseconds(12'000));
  EXPECT_EQ(asked_wait("Wed, 21 Oct 2015 07:28:00 GMT", {}, now), milliseconds(10'000));
  EXPECT_EQ(asked_wait("Wed, 21 Oct 2015 07:00:00 GMT", {}, now), milliseconds(0));
  EXPECT_EQ(asked_wait({}, "\"api\";r=0;t=55", now), milliseconds(55'000));
  EXPECT_FALSE(asked_wait({}, "\"api\";r=3;t=55", now));
  for (const char* bad : {"", "soon", "-1", "1.5", "99999999999999999999", "Wed, 21 Oct"})
    EXPECT_FALSE(asked_wait(bad, {}, now)) << bad;
  EXPECT_FALSE(asked_wait({}, {}, now));
}

TEST(Retry, OnlyWhatMayPassIsTriedAgain) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_passing(status));
  for (const int status : {400, 401, 403, 404, 416, 418, 501}) EXPECT_FALSE(is_passing(status));
}

}  // namespace
}  // namespace nibble
