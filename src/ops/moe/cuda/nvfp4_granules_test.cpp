#include "ops/moe/cuda/nvfp4_granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Packed {
  Nvfp4GranuleShape shape;
  std::vector<std::uint8_t> bytes;

  explicit Packed(const RandomNvfp4& matrices)
      : shape{matrices.rows, matrices.cols},
        bytes(shape.bytes() * static_cast<std::size_t>(matrices.experts())) {
    for (int expert = 0; expert < matrices.experts(); ++expert) {
      pack_nvfp4_granules(
          matrices.codes_of(expert), matrices.scales_of(expert), shape,
          std::span(bytes).subspan(static_cast<std::size_t>(expert) * shape.bytes(), shape.bytes()));
    }
  }
  float value(int expert, int row, int col) const {
    return granule_value({bytes.data(), 0, shape}, expert, row, col);
  }
};

TEST(Nvfp4Granules, HoldEveryWeightOfTheCheckpointWhereTheKernelsReadIt) {
  std::mt19937 random(1);
  for (const auto& [rows, cols] : {std::pair{16, 16}, {32, 80}, {48, 64}, {16, 2880}, {64, 592}}) {
    const RandomNvfp4 matrices(random, 2, rows, cols);
    const Packed packed(matrices);
    for (int expert = 0; expert < 2; ++expert) {
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < packed.shape.padded_cols(); ++col) {
          ASSERT_EQ(packed.value(expert, row, col), col < cols ? matrices.unscaled(expert, row, col) : 0.0f)
              << rows << " x " << cols << ", row " << row << ", column " << col;
        }
      }
    }
  }
}

TEST(Nvfp4Granules, AreExactForAllCodesAndScales) {
  std::mt19937 random(2);
  RandomNvfp4 matrices(random, 1, 64, 64);  // as many scales as there are
  for (std::size_t i = 0; i < matrices.scales.size(); ++i) {
    matrices.scales[i] = static_cast<std::uint8_t>(i);
    for (std::size_t byte = 0; byte < nvfp4_block_bytes; ++byte)
      matrices.codes[i * nvfp4_block_bytes + byte] =
          static_cast<std::uint8_t>((2 * byte + 1) << 4 | 2 * byte);
  }
  const Packed packed(matrices);
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      const float read = packed.value(0, scale / 4, scale % 4 * 16 + code);
      const float expected = E2m1{static_cast<std::uint8_t>(code)}.to_float() *
                             E4m3{static_cast<std::uint8_t>(scale)}.to_float();
      if (scale % 128 == 127) {
        EXPECT_TRUE(std::isnan(read)) << "scale " << scale << ", code " << code;
        continue;
      }
      EXPECT_EQ(read, expected) << "scale " << scale << ", code " << code;
      EXPECT_EQ(std::signbit(read), std::signbit(expected)) << "scale " << scale << ", code " << code;
    }
  }
}

TEST(Nvfp4Granules, TakeAsManyBytesAsTheCheckpointWhereKIsWholeBlocks) {
  const Nvfp4GranuleShape shape{5760, 2880};
  EXPECT_EQ(shape.bytes(), 5760u * 2880 / 16 * 9);
}

TEST(Nvfp4Granules, PlaceEveryByteOnce) {
  const Nvfp4GranuleShape shape{16, 2880};
  std::vector<int> taken(static_cast<std::size_t>(shape.granule_bytes()), 0);
  for (int block = 0; block < shape.blocks(); ++block) {
    const GranulePlace place = granule_place<Nvfp4GranuleLayout>(block);
    for (std::size_t i = 0; i < granule_code_bytes; ++i) ++taken[place.codes + i];
    for (int row = 0; row < granule_rows; ++row) {
      for (int group = 0; group < 4; ++group)
        ++taken[place.scales + static_cast<std::size_t>(granule_scale_at<Nvfp4GranuleLayout>(row, group))];
    }
  }
  EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
}

}  // namespace
}  // namespace nibble
