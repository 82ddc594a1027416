#include "formats/mxfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/buffer.h"

namespace nibble {
namespace {

using Values = std::array<float, mxfp4_block>;
using Codes = std::array<std::uint8_t, mxfp4_block_bytes>;

struct Block {
  Codes codes{};
  E8m0 scale;

  Values decode() const {
    Values values{};
    mxfp4_decode_block(codes.data(), scale, values.data());
    return values;
  }
};

Block encode(const Values& values, Mxfp4Scale convention) {
  Block block;
  block.scale = mxfp4_encode_block(values.data(), convention, block.codes.data());
  return block;
}

// A block whose largest magnitude is amax and stands first.
float scale_for(float amax, Mxfp4Scale convention) {
  Values values{};
  values[0] = -amax;
  values[31] = amax / 3;
  return encode(values, convention).scale.to_float();
}

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

TEST(Mxfp4, DecodesEveryCodeAtEveryScale) {
  Codes codes;
  for (std::uint8_t i = 0; i < 8; ++i) {
    // Index 2i in the low nibble: codes 0, 2, 4, ...; index 2i + 1 in the high one: 1, 3, 5, ...
    codes[i] = static_cast<std::uint8_t>((2 * i + 1) << 4 | 2 * i);
    codes[i + 8] = codes[i];
  }
  for (int scale = 0; scale < 256; ++scale) {
    Values values{};
    mxfp4_decode_block(codes.data(), E8m0{static_cast<std::uint8_t>(scale)}, values.data());
    for (std::size_t i = 0; i < mxfp4_block; ++i) {
      const std::size_t code = i % 16;
      if (scale == 255) {
        ASSERT_TRUE(std::isnan(values[i]));
        continue;
      }
      const double exact = std::ldexp(magnitudes[code % 8], scale - 127) * (code < 8 ? 1 : -1);
      const double expected = std::fabs(exact) > std::numeric_limits<float>::max()
                                  ? std::copysign(static_cast<double>(infinity), exact)
                                  : exact;
      ASSERT_EQ(static_cast<double>(values[i]), expected) << "code " << code << " scale " << scale;
      ASSERT_EQ(std::signbit(values[i]), code >= 8);
    }
  }
}

TEST(Mxfp4, ScaleByteZeroGivesSubnormalsUnchanged) {
  const Block smallest{Codes{0x71}, E8m0{0}};
  const Values values = smallest.decode();
  EXPECT_EQ(values[0], 0x1p-128f);
  EXPECT_EQ(values[1], 6 * 0x1p-127f);
  EXPECT_EQ(std::fpclassify(values[0]), FP_SUBNORMAL);
  // And they encode to the same bytes again.
  EXPECT_EQ(encode(values, Mxfp4Scale::ocp_floor).scale.bits, 0);
  EXPECT_EQ(encode(values, Mxfp4Scale::ocp_floor).codes[0], 0x71);
}

TEST(Mxfp4, RoundUpTakesTheSmallestScaleThatHoldsAmax) {
  EXPECT_EQ(scale_for(6.0f, Mxfp4Scale::round_up), 1.0f);
  EXPECT_EQ(scale_for(6.0001f, Mxfp4Scale::round_up), 2.0f);
  EXPECT_EQ(scale_for(std::nextafter(6.0f, 7.0f), Mxfp4Scale::round_up), 2.0f);
  EXPECT_EQ(scale_for(3.0f, Mxfp4Scale::round_up), 0.5f);
  EXPECT_EQ(scale_for(3.0001f, Mxfp4Scale::round_up), 1.0f);
  EXPECT_EQ(scale_for(4.0f, Mxfp4Scale::round_up), 1.0f);
}

TEST(Mxfp4, OcpTakesTheExponentOfAmaxLessTwo) {
  EXPECT_EQ(scale_for(4.0f, Mxfp4Scale::ocp_floor), 1.0f);
  EXPECT_EQ(scale_for(6.0001f, Mxfp4Scale::ocp_floor), 1.0f);
  EXPECT_EQ(scale_for(std::nextafter(8.0f, 0.0f), Mxfp4Scale::ocp_floor), 1.0f);
  EXPECT_EQ(scale_for(8.0f, Mxfp4Scale::ocp_floor), 2.0f);
  EXPECT_EQ(scale_for(std::nextafter(4.0f, 0.0f), Mxfp4Scale::ocp_floor), 0.5f);
}

TEST(Mxfp4, TheConventionsDifferOnlyForAmaxBetween6And8TimesAPowerOfTwo) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> mantissas(1.0f, 2.0f);
  for (int exponent = -120; exponent < 120; ++exponent) {
    for (int i = 0; i < 50; ++i) {
      const float mantissa = mantissas(random);
      const float amax = std::ldexp(mantissa, exponent);
      const float floor = scale_for(amax, Mxfp4Scale::ocp_floor);
      const float up = scale_for(amax, Mxfp4Scale::round_up);
      EXPECT_EQ(floor, std::ldexp(1.0f, exponent - 2));
      EXPECT_EQ(up, mantissa > 1.5f ? 2 * floor : floor) << amax;
    }
  }
}

TEST(Mxfp4, EncodesEachValueToTheNearestCodeOfItsBlock) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    const float spread = std::ldexp(1.0f, static_cast<int>(random() % 200) - 100);
    Values values;
    for (float& value : values) value = normal(random) * spread;
    for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
      const Block block = encode(values, convention);
      const Values decoded = block.decode();
      for (std::size_t i = 0; i < mxfp4_block; ++i) {
        double best = infinity;
        for (const double magnitude : magnitudes) {
          const double candidate = magnitude * static_cast<double>(block.scale.to_float());
          best = std::min(best, std::fabs(std::fabs(static_cast<double>(values[i])) - candidate));
        }
        const double error = std::fabs(static_cast<double>(values[i]) - static_cast<double>(decoded[i]));
        ASSERT_EQ(error, best) << values[i];
        if (convention == Mxfp4Scale::round_up) {
          ASSERT_LE(std::fabs(values[i]), 6 * block.scale.to_float());
        }
      }
    }
  }
}

TEST(Mxfp4, WhatItDecodesItEncodesToTheSameValues) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    Block block;
    for (std::uint8_t& pair : block.codes) pair = static_cast<std::uint8_t>(random());
    block.scale.bits = static_cast<std::uint8_t>(random() % 253);  // beyond, the largest codes are infinite
    const Values values = block.decode();
    for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
      const Values again = encode(values, convention).decode();
      for (std::size_t i = 0; i < mxfp4_block; ++i) {
        ASSERT_EQ(again[i], values[i]);
        ASSERT_EQ(std::signbit(again[i]), std::signbit(values[i]));
      }
    }
  }
}

TEST(Mxfp4, ABlockOfZerosKeepsTheirSigns) {
  Values values{};
  values[3] = -0.0f;
  for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
    const Block block = encode(values, convention);
    EXPECT_EQ(block.scale.bits, 0);
    EXPECT_EQ(block.codes[1], 0x80);
    EXPECT_EQ(block.decode()[0], 0.0f);
    EXPECT_TRUE(std::signbit(block.decode()[3]));
  }
}

TEST(Mxfp4, ABlockThatCannotBeEncodedIsNanAndNothingElse) {
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    Values values{};
    values[0] = 1;
    values[17] = bad;
    const Block block = encode(values, Mxfp4Scale::round_up);
    EXPECT_TRUE(block.scale.is_nan());
    for (const float value : block.decode()) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Mxfp4, TheSmallestAndLargestFloatsFit) {
  for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
    Values values{};
    values[0] = 0x1.8p127f;
    EXPECT_EQ(encode(values, convention).decode()[0], 0x1.8p127f);
    values[0] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(encode(values, convention).decode()[0], 0.0f) << "below half of 2^-128";
    values[0] = 0x1p-128f;
    EXPECT_EQ(encode(values, convention).decode()[0], 0x1p-128f);
  }
}

TEST(Mxfp4, AMatrixIsReadFromItsTwoTensors) {
  Buffer blocks = *Buffer::zeroed(96);
  Buffer scales = *Buffer::zeroed(6);
  blocks.data()[81] = std::byte{0x50};  // row 1, block 2, index 3
  scales.data()[5] = std::byte{128};
  const ConstTensor codes = blocks.tensor(DType::u8, {2, 3, 16});
  const Mxfp4Checkpoint matrix = *mxfp4_checkpoint_matrix(codes, scales.tensor(DType::u8, {2, 3}));
  EXPECT_EQ(matrix.rows, 2);
  EXPECT_EQ(matrix.cols, 96);
  std::vector<float> row(96);
  mxfp4_decode_row(matrix, 1, row);
  EXPECT_EQ(row[2 * 32 + 3], 6.0f);
  EXPECT_EQ(std::count(row.begin(), row.end(), 0.0f), 95);
}

TEST(Mxfp4, AMatrixOfAnotherShapeIsRefused) {
  Buffer buffer = *Buffer::zeroed(256);
  const ConstTensor scales = buffer.tensor(DType::u8, {2, 3});
  const ConstTensor blocks = buffer.tensor(DType::u8, {2, 3, 16});
  EXPECT_EQ(mxfp4_checkpoint_matrix(buffer.tensor(DType::u8, {2, 3, 17}), scales).status().message(),
            "MXFP4 blocks must be u8 [rows, cols / 32, 16], not u8 [2, 3, 17]");
  EXPECT_EQ(mxfp4_checkpoint_matrix(blocks, buffer.tensor(DType::u8, {3, 2})).status().message(),
            "MXFP4 scales for blocks [2, 3, 16] must be u8 [2, 3], not u8 [3, 2]");
}

TEST(Mxfp4, EncodesBf16BlocksOfEveryExponentLikeFloats) {
  std::mt19937 random(7);
  for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
    for (int base = 0; base < 256; ++base) {
      std::vector<Bf16> values(20 * mxfp4_block);
      for (Bf16& value : values) {
        // Now and then the middle between two codes, zeros of both signs, and a value far below the others.
        const unsigned kind = random() % 16, below = kind == 0 ? 200 : random() % 6;
        const int exponent = std::max(base - static_cast<int>(below), 0);
        value.bits = static_cast<std::uint16_t>((random() & (kind < 8 ? 0x8060u : 0x807fu)) |
                                                static_cast<unsigned>(exponent) << 7);
        if (kind == 1) value.bits &= 0x8000u;
      }
      std::vector<std::uint8_t> codes(20 * mxfp4_block_bytes), scales(20);
      mxfp4_encode(values, convention, codes.data(), scales.data());
      for (std::size_t b = 0; b < 20; ++b) {
        Values wide{};
        for (std::size_t i = 0; i < mxfp4_block; ++i) wide[i] = values[b * mxfp4_block + i].to_float();
        const Block expected = encode(wide, convention);
        ASSERT_EQ(scales[b], expected.scale.bits) << "exponent " << base;
        ASSERT_TRUE(std::equal(expected.codes.begin(), expected.codes.end(),
                               codes.begin() + static_cast<std::ptrdiff_t>(b * mxfp4_block_bytes)))
            << "exponent " << base;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
