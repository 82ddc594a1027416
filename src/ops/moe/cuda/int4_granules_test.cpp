#include "ops/moe/cuda/int4_granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
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

// Subnormal results and those that are infinite included.
TEST(Int4Granules, AreExactForAllCodesAndScales) {
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
  for (int scale = 0; scale < 65536; ++scale) {
    const std::array<Bf16, 16> expected = int4_values(Bf16{static_cast<std::uint16_t>(scale)});
    for (int code = 0; code < 16; ++code) {
      const float read = packed.value(0, scale / 32, scale % 32 * int4_group + code);
      const float value = expected[static_cast<std::size_t>(code)].to_float();
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(read)) << "scale " << scale << ", code " << code;
        continue;
      }
      ASSERT_EQ(std::bit_cast<std::uint32_t>(read), std::bit_cast<std::uint32_t>(value))
          << "scale " << scale << ", code " << code;
    }
  }
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
