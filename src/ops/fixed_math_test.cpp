#include "ops/fixed_math.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nibble
