#include "app/peak_rate.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(PeakRate, IsThatOfTheFastestInstructionAndGrowsWithBfloat16) {
  const Result<PeakRate> single = measure_peak_rate(1, false), half = measure_peak_rate(1, true);
  ASSERT_TRUE(single.ok() && half.ok());
  // No x86-64 CPU of this century multiplies slower, none faster than a few tera a core.
  EXPECT_GT(single->flops, 1e8);
  EXPECT_LT(half->flops, 1e14);
  EXPECT_FALSE(single->instruction.empty());
  EXPECT_EQ(single->instruction.find("BF16"), std::string_view::npos);
}

}  // namespace
}  // namespace nibble
