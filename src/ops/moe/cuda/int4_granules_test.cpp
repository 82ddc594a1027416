#include "ops/moe/cuda/int4_granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Packed {
  Int4GranuleShape shape;
  std::vector<std::uint8_t> bytes;

  explicit Packed(const RandomInt4& matrices)
      : shape{matrices.rows, matrices.cols},
        bytes(shape.bytes() * static_cast<std::size_t>(matrices.experts)) {
    for (int expert = 0; expert < matrices.experts; ++expert) {
      pack_int4_granules(
          matrices.codes_of(expert), matrices.scales_of(expert), shape,
          std::span(bytes).subspan(static_cast<std::size_t>(expert) * shape.bytes(), shape.bytes()));
    }
  }
  float value(int expert, int row, int col) const {
    return granule_value(Int4Granules{bytes.data(), 0, shape}, expert, row, col);
  }
};

TEST(Int4Granules, HoldEveryWeightOfTheCheckpointWhereTheKernelsReadIt) {
  std::mt19937 random(1);
  for (const auto& [rows, cols] : {std::pair{16, 32}, {32, 96}, {48, 64}, {16, 2048}, {64, 608}}) {
    const RandomInt4 matrices(random, 2, rows, cols);
    const Packed packed(matrices);
    for (int expert = 0; expert < 2; ++expert) {
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < packed.shape.padded_cols(); ++col) {
          ASSERT_EQ(packed.value(expert, row, col), col < cols ? matrices.value(expert, row, col) : 0.0f)
              << rows << " x " << cols << ", row " << row << ", column " << col;
        }
      }
    }
  }
}

TEST(Int4Granules, AreExactForAllCodesAndAllScalesThatFit) {
  std::mt19937 random(2);
  RandomInt4 matrices(random, 1, 2048, 1024);  // as many scales as bfloat16 has
  ASSERT_EQ(matrices.scales.size(), 65536u);
  for (std::size_t i = 0; i < matrices.scales.size(); ++i) {
    matrices.scales[i].bits = static_cast<std::uint16_t>(i);
    for (std::size_t byte = 0; byte < int4_group / 2; ++byte)
      matrices.codes[i * int4_group / 2 + byte] =
          static_cast<std::uint8_t>((2 * byte + 1) << 4 | (2 * byte & 15));
  }
  const Packed packed(matrices);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint32_t magnitude = bits & 0x7fff;
    const bool number = magnitude < int4_infinity;
    if (number && magnitude > 0 && !int4_scales_fit({magnitude, int4_infinity - magnitude})) continue;
    const Bf16 scale{static_cast<std::uint16_t>(bits)};
    const std::array<Bf16, 16> expected = int4_values(scale);
    for (int code = 0; code < 16; ++code) {
      const float read =
          packed.value(0, static_cast<int>(bits) / 32, static_cast<int>(bits) % 32 * int4_group + code);
      if (number) {
        ASSERT_EQ(read, expected[static_cast<std::size_t>(code)].to_float())
            << scale.to_float() << " x " << code;
      } else {
        ASSERT_FALSE(std::isfinite(read)) << "scale " << bits << ", code " << code;
      }
    }
  }
}

TEST(Int4Granules, ScalesFitWhereNoBitIsLost) {
  const auto fits = [](float least, float largest) {
    return int4_scales_fit(
        {Bf16::from_float(largest).bits, int4_infinity - std::uint32_t{Bf16::from_float(least).bits}});
  };
  EXPECT_TRUE(fits(0x1p-123f, 1.9f));
  EXPECT_FALSE(fits(0.1f, 2.0f));
  EXPECT_FALSE(fits(0x1p-124f, 0.1f));
  EXPECT_TRUE(int4_scales_fit({})) << "no weight that is not zero";
}

TEST(Int4Granules, TakeAsManyBytesAsTheCheckpointWhereKIsWholeBlocks) {
  const Int4GranuleShape shape{4096, 7168};
  EXPECT_EQ(shape.bytes(), 4096u * 7168 / 2 + 4096u * 7168 / 32 * 2);
}

TEST(Int4Granules, PlaceEveryByteOnce) {
  const Int4GranuleShape shape{16, 2048};
  std::vector<int> taken(static_cast<std::size_t>(shape.granule_bytes()), 0);
  for (int block = 0; block < shape.blocks(); ++block) {
    const GranulePlace place = granule_place<Int4GranuleLayout>(block);
    for (std::size_t i = 0; i < granule_code_bytes; ++i) ++taken[place.codes + i];
    for (int row = 0; row < granule_rows; ++row) {
      for (int group = 0; group < 2; ++group) {
        const std::size_t at =
            place.scales + static_cast<std::size_t>(granule_scale_at<Int4GranuleLayout>(row, group));
        ++taken[at];
        ++taken[at + 1];
      }
    }
  }
  EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
}

// A lane's two rows lie in one word, at a multiple of four.
TEST(Int4Granules, HaveALanesScalesSideBySide) {
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4 * 2, group = lane % 4 / 2, at = granule_lane_scales<Int4GranuleLayout>(lane);
    EXPECT_EQ(at % 4, 0);
    EXPECT_EQ(at, granule_scale_at<Int4GranuleLayout>(row, group));
    EXPECT_EQ(at + 2, granule_scale_at<Int4GranuleLayout>(row + 1, group));
  }
}

}  // namespace
}  // namespace nibble
