#include "app/peak_rate.h"

#include <gtest/gtest.h>

#include <string_view>

namespace nibble {
namespace {

TEST(PeakRate, IsThatOfTheFastestInstructionForSuchValues) {
  const Result<PeakRate> single = measure_peak_rate(1, PeakValues::float32),
                         half = measure_peak_rate(1, PeakValues::bfloat16),
                         eight_bits = measure_peak_rate(1, PeakValues::int8);
  ASSERT_TRUE(single.ok() && half.ok() && eight_bits.ok());
  // No x86-64 CPU of this century multiplies slower, none faster than a few tera a core.
  EXPECT_GT(single->flops, 1e8);
  EXPECT_LT(half->flops, 1e14);
  EXPECT_LT(eight_bits->flops, 1e14);
  EXPECT_FALSE(single->instruction.empty());
  EXPECT_EQ(single->instruction.find("BF16"), std::string_view::npos);
  // TDPBUSD, VPDPBUSD or VPMADDUBSW.
  const auto multiplies_bytes = [](std::string_view instruction) {
    return instruction.find("BUS") != std::string_view::npos ||
           instruction.find("UBS") != std::string_view::npos;
  };
  EXPECT_FALSE(multiplies_bytes(half->instruction)) << half->instruction;
  EXPECT_EQ(multiplies_bytes(eight_bits->instruction), __builtin_cpu_supports("avx2") != 0)
      << eight_bits->instruction;
}

}  // namespace
}  // namespace nibble
