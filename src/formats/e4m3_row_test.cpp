#include "formats/e4m3_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/bf16.h"
#include "formats/e4m3.h"

namespace nibble {
namespace {

float bf16(int bits) { return Bf16{static_cast<std::uint16_t>(bits)}.to_float(); }

std::vector<float> rounded(const std::vector<float>& row) {
  std::vector<float> out(row.size());
  round_to_e4m3(row, e4m3_row_factor(row), out.data());
  return out;
}

// The largest 2^-e with which the row's largest magnitude is at most 448, by trying.
int exponent_by_trying(double largest) {
  int exponent = least_e4m3_row_exponent;
  while (std::ldexp(largest, -exponent) > 448.0) ++exponent;
  return exponent;
}

TEST(E4m3Row, TheScaleIsTheSmallestPowerOfTwoThatHoldsTheLargestMagnitude) {
  for (int bits = 1; bits < 0x7f80; ++bits) {
    const float largest = bf16(bits);
    const std::vector<float> row{0.0f, -largest, bf16(bits / 2)};
    ASSERT_EQ(e4m3_row_factor(row), std::ldexp(1.0f, -exponent_by_trying(largest))) << bits;
  }
  EXPECT_EQ(e4m3_row_factor(std::vector<float>{448.0f}), 1.0f);
  EXPECT_EQ(e4m3_row_factor(std::vector<float>{450.0f}), 0.5f);
}

// Every bfloat16 in rows whose scale lies so that it becomes a normal, a subnormal, or zero.
TEST(E4m3Row, EveryBfloat16BecomesTheNearestCodeTimesThePowerOfTwo) {
  for (const int shift : {0, 1, 3, 6, 7, 12, 14, 15, 16, 17, 18, 25}) {
    for (int bits = 0; bits < 0x7f80; ++bits) {
      const float value = bf16(bits);
      const float largest = std::ldexp(1.75f, std::min(127, std::ilogb(std::max(value, 0x1p-133f)) + shift));
      const std::vector<float> row{value, std::max(value, largest), -value};
      const int exponent = exponent_by_trying(row[1]);
      const float code =
          E4m3::from_float(static_cast<float>(std::ldexp(double{value}, -exponent))).to_float();
      const std::vector<float> found = rounded(row);
      const float expected = static_cast<float>(std::ldexp(double{code}, exponent));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found[0]), std::bit_cast<std::uint32_t>(expected))
          << bits << " in a row of " << row[1];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found[2]), std::bit_cast<std::uint32_t>(-expected)) << bits;
    }
  }
}

TEST(E4m3Row, ARoundedValueIsABfloat16AndRoundsToItself) {
  for (const int shift : {0, 2, 8, 14, 17}) {
    for (int bits = 0; bits < 0x7f80; ++bits) {
      const float value = bf16(bits);
      const std::vector<float> row{value,
                                   std::ldexp(value, shift) < 0x1p127f ? std::ldexp(value, shift) : value};
      const std::vector<float> once = rounded(row);
      for (const float each : once) ASSERT_EQ(Bf16::from_float(each).to_float(), each) << bits;
      if (bits >= 0x7f78) {
        ASSERT_TRUE(std::isinf(once[0])) << bits;
        continue;
      }
      ASSERT_EQ(rounded(once), once) << bits;
    }
  }
}

TEST(E4m3Row, ZerosAndWhatIsNoNumberStay) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> zeros{0.0f, -0.0f};
  EXPECT_TRUE(std::signbit(rounded(zeros)[1]) && !std::signbit(rounded(zeros)[0]));
  for (const float none : {infinity, -infinity, nan}) {
    const std::vector<float> found = rounded({1.015625f, none, 3.140625f});
    EXPECT_EQ(found[0], 1.015625f);
    EXPECT_EQ(found[2], 3.140625f);
    EXPECT_EQ(std::isnan(none), std::isnan(found[1]));
  }
}

TEST(E4m3Row, CodesTimesTheirScaleAreTheRoundedRow) {
  for (const int shift : {0, 3, 14, 17, 25}) {
    for (int bits = 0; bits < 0x7f70; ++bits) {
      const float value = bf16(bits);
      const float largest = std::ldexp(1.75f, std::min(127, std::ilogb(std::max(value, 0x1p-133f)) + shift));
      const std::vector<float> row{value, largest, -value};
      std::uint8_t codes[3];
      const float scale = e4m3_row_codes(row, codes);
      ASSERT_EQ(scale, 1.0f / e4m3_row_factor(row));
      const std::vector<float> expected = rounded(row);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float found = E4m3{codes[i]}.to_float() * scale;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected[i])) << bits;
      }
    }
  }
}

TEST(E4m3Row, CodesOfZerosHaveScaleOneAndOfWhatIsNoNumberNone) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  std::uint8_t codes[4];
  EXPECT_EQ(e4m3_row_codes(std::vector<float>{0.0f, -0.0f}, codes), 1.0f);
  EXPECT_EQ(codes[0], 0x00);
  EXPECT_EQ(codes[1], 0x80);
  EXPECT_TRUE(std::isnan(e4m3_row_codes(std::vector<float>{-infinity, -nan, 1.0f, 1e9f}, codes)));
  EXPECT_EQ(codes[0], 0xfe);
  EXPECT_EQ(codes[1], 0x7f);
  EXPECT_EQ(codes[2], E4m3::from_float(1.0f).bits);
  EXPECT_EQ(codes[3], 0x7e);
}

}  // namespace
}  // namespace nibble
