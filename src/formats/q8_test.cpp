#include "formats/q8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace nibble {
namespace {

using Block = std::array<Bf16, q8_block>;

// What the header says, in double precision.
E8m0 expected_scale(const Block& block) {
  double amax = 0;
  for (Bf16 value : block) {
    if (!std::isfinite(value.to_float())) return {E8m0::nan_bits};
    amax = std::max(amax, std::abs(static_cast<double>(value.to_float())));
  }
  if (amax == 0) return {127};
  int exponent = -127;
  while (amax > 127 * std::ldexp(1.0, exponent)) ++exponent;
  return E8m0::from_exponent(exponent);
}

void expect_as_documented(const Block& block) {
  std::array<std::int8_t, q8_block> codes{};
  const E8m0 scale = q8_encode_block(block.data(), codes.data());
  ASSERT_EQ(scale.bits, expected_scale(block).bits);
  if (scale.is_nan()) return;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const double quotient = std::ldexp(static_cast<double>(block[i].to_float()), 127 - int{scale.bits});
    ASSERT_EQ(codes[i], std::nearbyint(quotient)) << "scale byte " << int{scale.bits};
  }
}

TEST(Q8, EncodesRandomBlocksOfEveryExponentAsDocumented) {
  std::mt19937 random(1);
  for (int base = 0; base < 256; ++base) {
    for (int repeat = 0; repeat < 40; ++repeat) {
      Block block;
      for (Bf16& value : block) {
        const int exponent = std::clamp(base - static_cast<int>(random() % 12), 0, 255);
        value.bits = static_cast<std::uint16_t>((random() & 0x807f) | static_cast<unsigned>(exponent) << 7);
      }
      expect_as_documented(block);
    }
  }
}

TEST(Q8, KeepsIntegersTimesAPowerOfTwoExactly) {
  std::mt19937 random(2);
  for (int exponent = -100; exponent <= 100; ++exponent) {
    Block block;
    for (Bf16& value : block)
      value =
          Bf16::from_float(std::ldexp(static_cast<float>(static_cast<int>(random() % 255) - 127), exponent));
    std::array<std::int8_t, q8_block> codes{};
    std::uint8_t scale = 0;
    q8_encode(block, codes.data(), &scale);
    std::array<float, q8_block> decoded{};
    q8_decode_row({codes.data(), &scale, 1, q8_block}, 0, decoded);
    for (std::size_t i = 0; i < block.size(); ++i) ASSERT_EQ(decoded[i], block[i].to_float());
  }
}

TEST(Q8, MarksABlockThatIsNotFiniteAndKeepsZerosTame) {
  Block block{};
  std::array<std::int8_t, q8_block> codes{};
  EXPECT_EQ(q8_encode_block(block.data(), codes.data()).bits, 127);
  for (std::int8_t code : codes) EXPECT_EQ(code, 0);
  for (std::uint16_t bits : {0x7f80, 0xff80, 0x7fc0, 0xffff}) {
    block[7].bits = bits;
    EXPECT_TRUE(q8_encode_block(block.data(), codes.data()).is_nan());
    std::array<float, q8_block> decoded{};
    const std::uint8_t scale = E8m0::nan_bits;
    q8_decode_row({codes.data(), &scale, 1, q8_block}, 0, decoded);
    for (float value : decoded) EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace nibble
