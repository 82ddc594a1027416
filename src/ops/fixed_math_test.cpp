#include "ops/fixed_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

TEST(FixedExp, IsWithinTwoUnitsOfTheExactValueForEveryFloatInRange) {
  // Every 509th of the floats between the ends, both signs.
  double worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42b17218u; bits += 509) {
    for (float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x < -87.33f) continue;
      const double exact = std::exp(static_cast<double>(x));
      const float rounded = static_cast<float>(exact);
      if (std::isinf(rounded)) continue;
      const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
      worst = std::max(worst, std::abs(fixed_exp(x) - exact) / unit);
    }
  }
  EXPECT_LT(worst, 2.0);
}

TEST(FixedExp, HasTheSameBitsWithoutBranches) {
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(fixed_exp_branchless(x)));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(fixed_exp_branchless(x)),
                std::bit_cast<std::uint32_t>(fixed_exp(x)))
          << x;
    }
  }
}

TEST(FixedExp, HasTheSameBitsInFewerStepsBelowZero) {
  const auto same = [](float x) {
    return std::bit_cast<std::uint32_t>(fixed_exp_of_negative(x)) ==
           std::bit_cast<std::uint32_t>(fixed_exp(x));
  };
  for (std::uint64_t bits = 0x80000000u; bits <= 0xff800000u; bits += 257) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_TRUE(same(x)) << x;
  }
  for (float x = -87.4f; x < -86.5f; x = std::nextafter(x, 0.0f)) ASSERT_TRUE(same(x)) << x;
  EXPECT_TRUE(same(0.0f));
  EXPECT_TRUE(same(-std::numeric_limits<float>::infinity()));
}

TEST(FixedExp, EndsOfTheRange) {
  EXPECT_EQ(fixed_exp(0.0f), 1.0f);
  EXPECT_EQ(fixed_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(fixed_exp(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isinf(fixed_exp(89.0f)));
  EXPECT_TRUE(std::isfinite(fixed_exp(88.72f)));
  EXPECT_TRUE(std::isnan(fixed_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(FixedLog, AgreesWithTheMathLibrary) {
  for (double x = 1e-30; x < 1e30; x *= 1.0137) {
    EXPECT_NEAR(fixed_log(x), std::log(x), 1e-14 * std::max(1.0, std::abs(std::log(x))));
  }
  EXPECT_EQ(fixed_log(1.0), 0.0);
}

TEST(FixedExpDouble, AgreesWithTheMathLibrary) {
  for (double x = -650; x < 650; x += 0.377) EXPECT_NEAR(fixed_exp_double(x) / std::exp(x), 1.0, 2e-14) << x;
  EXPECT_EQ(fixed_exp_double(0.0), 1.0);
}

TEST(FixedSinCos, AgreesWithTheMathLibraryUpToTheLongestContext) {
  for (double x : {0.0, 1e-9, 0.5, 0.7853981633974483, 1.5707963267948966, 3.14159, 131071.0, 131072.0 * 0.7,
                   16777216.0, 67108864.0}) {
    EXPECT_NEAR(fixed_sin_cos(x).sin, std::sin(x), 1e-15) << x;
    EXPECT_NEAR(fixed_sin_cos(x).cos, std::cos(x), 1e-15) << x;
  }
  int differ = 0;
  for (double x = 0; x < 200000; x += 0.61803398875) {
    const SinCos turn = fixed_sin_cos(x);
    ASSERT_NEAR(turn.sin, std::sin(x), 1e-15) << x;
    ASSERT_NEAR(turn.cos, std::cos(x), 1e-15) << x;
    differ += static_cast<float>(turn.sin) != static_cast<float>(std::sin(x));
  }
  EXPECT_LE(differ, 3) << "of 323,607 float32 roundings";
}

}  // namespace
}  // namespace nibble
