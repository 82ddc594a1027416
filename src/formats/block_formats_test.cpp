// NVFP4, MXFP8 and FP8 block against models of their own in double precision: the nearest of a table's
// values, scales as the headers say. codec_kernels_test.cpp holds the lanes to the same code.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "formats/fp8_block.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal_floats(std::size_t count, std::mt19937& random, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// How far the nearest value of a format is from x / scale, times scale.
template <class Codec>
double least_error(double x, double scale, int codes) {
  double best = infinity;
  for (int code = 0; code < codes; ++code) {
    const double value = static_cast<double>(Codec{static_cast<std::uint8_t>(code)}.to_float());
    if (!std::isnan(value)) best = std::min(best, std::fabs(x - value * scale));
  }
  return best;
}

struct Nvfp4 {
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> decoded;
};
Nvfp4 through_nvfp4(const std::vector<float>& values, float global) {
  Nvfp4 out{std::vector<std::uint8_t>(values.size() / 2), std::vector<std::uint8_t>(values.size() / 16),
            std::vector<float>(values.size())};
  nvfp4_encode(values, global, out.codes.data(), out.scales.data());
  nvfp4_decode(out.codes.data(), out.scales.data(), global, out.decoded);
  return out;
}

TEST(Nvfp4, TheGlobalScaleLiftsTheLargestBlockToTheLargestScale) {
  EXPECT_EQ(nvfp4_global_scale(6.0f), 448.0f);
  EXPECT_EQ(nvfp4_global_scale(2688.0f), 1.0f);
  EXPECT_EQ(nvfp4_global_scale(0.0f), 1.0f);
  EXPECT_EQ(nvfp4_global_scale(1e-44f), std::numeric_limits<float>::max());
  std::vector<float> values(32, 0.25f);
  values[5] = -3.0f;
  const Nvfp4 out = through_nvfp4(values, nvfp4_global_scale(3.0f));
  EXPECT_EQ(E4m3{out.scales[0]}.to_float(), 448.0f);
  EXPECT_EQ(out.decoded[5], -3.0f);
  EXPECT_EQ(E4m3{out.scales[1]}.to_float(), 36.0f) << "the nearest to 448 / 12";
}

TEST(Nvfp4, ValuesAreTheNearestThatTheirScaleAllows) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const float spread = std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
    const std::vector<float> values = normal_floats(64, random, spread);
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::fabs(value));
    const float global = nvfp4_global_scale(amax);
    const Nvfp4 out = through_nvfp4(values, global);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const E4m3 scale{out.scales[i / 16]};
      const double step = static_cast<double>(scale.to_float()) / static_cast<double>(global);
      const double error = std::fabs(static_cast<double>(values[i]) - static_cast<double>(out.decoded[i]));
      // A tie in float32 need not be one in double.
      ASSERT_LE(error,
                least_error<E2m1>(static_cast<double>(values[i]), step, 16) * (1 + 1e-5) + step * 1e-6);
    }
  }
}

TEST(Nvfp4, TheScaleIsTheNearestToAmaxOverSix) {
  for (int code = 1; code < 0x7e; ++code) {
    const E4m3 scale{static_cast<std::uint8_t>(code)};
    std::vector<float> values(16, 0.0f);
    values[3] = 6 * scale.to_float();
    EXPECT_EQ(through_nvfp4(values, 1.0f).scales[0], scale.bits);
    const float next = E4m3{static_cast<std::uint8_t>(code + 1)}.to_float();
    values[3] = std::nextafter(3 * (scale.to_float() + next), 0.0f);
    EXPECT_EQ(through_nvfp4(values, 1.0f).scales[0], scale.bits);
    values[3] = std::nextafter(3 * (scale.to_float() + next), 1e9f);
    EXPECT_EQ(through_nvfp4(values, 1.0f).scales[0], scale.bits + 1);
  }
}

TEST(Nvfp4, ABlockOfZerosHasTheScaleZeroAndKeepsItsSigns) {
  std::vector<float> values(16, 0.0f);
  values[2] = -0.0f;
  const Nvfp4 out = through_nvfp4(values, 5.0f);
  EXPECT_EQ(out.scales[0], 0);
  EXPECT_EQ(out.codes[1], 0x08);
  EXPECT_TRUE(std::signbit(out.decoded[2]));
  values.assign(16, 0x1p-12f);
  EXPECT_EQ(through_nvfp4(values, 1.0f).scales[0], 0) << "amax / 6 is below half of the least scale";
  EXPECT_EQ(through_nvfp4(values, 1.0f).decoded, std::vector<float>(16, 0.0f));
}

TEST(Nvfp4, ScalesAndValuesSaturate) {
  std::vector<float> values(16, 1.0f);
  values[0] = 1e30f;
  values[1] = -1e30f;
  const Nvfp4 out = through_nvfp4(values, 1.0f);
  EXPECT_EQ(E4m3{out.scales[0]}.to_float(), 448.0f);
  EXPECT_EQ(out.decoded[0], 2688.0f);
  EXPECT_EQ(out.decoded[1], -2688.0f);
  EXPECT_EQ(out.decoded[2], 0.0f);
  EXPECT_FALSE(std::isnan(through_nvfp4(values, 0x1p127f).decoded[2]));
}

TEST(Nvfp4, ABlockThatIsNotFiniteIsNanAndNothingElse) {
  for (const float bad : {infinity, -infinity, nan}) {
    std::vector<float> values(48, 1.0f);
    values[20] = bad;
    const Nvfp4 out = through_nvfp4(values, 1.0f);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(out.decoded[i]), i / 16 == 1) << i;
    EXPECT_EQ(out.scales[1], 0x7f);
  }
}

TEST(Nvfp4, AGlobalScaleThatCannotBeDividedByIsRefused) {
  for (const float bad : {0.0f, -1.0f, infinity, nan, 1e-44f})
    EXPECT_FALSE(check_nvfp4_global_scale(bad).ok());
  EXPECT_TRUE(check_nvfp4_global_scale(2688.0f).ok());
}

struct Mxfp8 {
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> decoded;
};
Mxfp8 through_mxfp8(const std::vector<float>& values) {
  Mxfp8 out{std::vector<std::uint8_t>(values.size()), std::vector<std::uint8_t>(values.size() / 32),
            std::vector<float>(values.size())};
  mxfp8_encode(values, out.codes.data(), out.scales.data());
  mxfp8_decode(out.codes.data(), out.scales.data(), out.decoded);
  return out;
}

TEST(Mxfp8, TheScaleIsTheSmallestPowerOfTwoThatHoldsAmax) {
  std::vector<float> values(32, 0.0f);
  const auto scale_for = [&](float amax) {
    values[9] = amax;
    return E8m0{through_mxfp8(values).scales[0]}.to_float();
  };
  EXPECT_EQ(scale_for(448.0f), 1.0f);
  EXPECT_EQ(scale_for(std::nextafter(448.0f, 1e9f)), 2.0f);
  EXPECT_EQ(scale_for(224.0f), 0.5f);
  EXPECT_EQ(scale_for(256.0f), 1.0f);
  EXPECT_EQ(scale_for(std::numeric_limits<float>::max()), 0x1p120f);
  EXPECT_EQ(scale_for(std::numeric_limits<float>::denorm_min()), 0x1p-127f);
}

TEST(Mxfp8, ValuesAreTheNearestThatTheirScaleAllows) {
  std::mt19937 random(2);
  for (int round = 0; round < 40; ++round) {
    const float spread = std::ldexp(1.0f, static_cast<int>(random() % 200) - 100);
    const std::vector<float> values = normal_floats(64, random, spread);
    const Mxfp8 out = through_mxfp8(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double scale = static_cast<double>(E8m0{out.scales[i / 32]}.to_float());
      const double error = std::fabs(static_cast<double>(values[i]) - static_cast<double>(out.decoded[i]));
      ASSERT_EQ(error, least_error<E4m3>(static_cast<double>(values[i]), scale, 256));
    }
  }
}

TEST(Mxfp8, ZerosKeepTheirSignsAndBlocksThatAreNotFiniteAreNan) {
  std::vector<float> values(64, 0.0f);
  values[7] = -0.0f;
  values[40] = infinity;
  const Mxfp8 out = through_mxfp8(values);
  EXPECT_EQ(out.scales[0], 0);
  EXPECT_EQ(out.codes[7], 0x80);
  EXPECT_TRUE(std::signbit(out.decoded[7]));
  EXPECT_EQ(out.scales[1], 255);
  for (std::size_t i = 32; i < 64; ++i) EXPECT_TRUE(std::isnan(out.decoded[i]));
}

struct Fp8Block {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, decoded;
};
Fp8Block through_fp8_block(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  const std::size_t tile_cols = static_cast<std::size_t>(fp8_tiles(cols));
  Fp8Block out{std::vector<std::uint8_t>(values.size()),
               std::vector<float>(static_cast<std::size_t>(fp8_tiles(rows)) * tile_cols),
               std::vector<float>(values.size())};
  for (std::int64_t band = 0; band < fp8_tiles(rows); ++band) {
    const Fp8Band of_rows{std::min<std::int64_t>(fp8_tile, rows - band * fp8_tile), cols};
    const auto at = static_cast<std::size_t>(band * fp8_tile * cols);
    float* scales = out.scales.data() + static_cast<std::size_t>(band) * tile_cols;
    fp8_block_encode(of_rows, values.data() + at, out.codes.data() + at, scales);
    fp8_block_decode(of_rows, out.codes.data() + at, scales, out.decoded.data() + at);
  }
  return out;
}

TEST(Fp8Block, TilesAtTheEdgesHoldWhatIsLeft) {
  std::mt19937 random(3);
  for (const auto& [rows, cols] : {std::pair{1, 1}, {128, 128}, {129, 127}, {300, 576}, {5, 1000}}) {
    const std::vector<float> values = normal_floats(static_cast<std::size_t>(rows * cols), random, 0.02f);
    const Fp8Block out = through_fp8_block(values, rows, cols);
    const std::int64_t tile_cols = fp8_tiles(cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        const auto at = static_cast<std::size_t>(row * cols + col);
        const float scale = out.scales[static_cast<std::size_t>(row / 128 * tile_cols + col / 128)];
        float amax = 0;
        if (col % 128 == 0) {
          for (std::int64_t r = row / 128 * 128; r < std::min<std::int64_t>(rows, row / 128 * 128 + 128);
               ++r) {
            for (std::int64_t c = col; c < std::min<std::int64_t>(cols, col + 128); ++c)
              amax = std::max(amax, std::fabs(values[static_cast<std::size_t>(r * cols + c)]));
          }
          ASSERT_EQ(scale, amax / 448);
        }
        ASSERT_EQ(out.codes[at], E4m3::from_float(values[at] / scale).bits);
        ASSERT_EQ(out.decoded[at], E4m3{out.codes[at]}.to_float() * scale);
      }
    }
  }
}

TEST(Fp8Block, ScalesAreNeverZeroNorSubnormal) {
  EXPECT_EQ(fp8_tile_scale(0.0f), 1.0f);
  EXPECT_EQ(fp8_tile_scale(448.0f), 1.0f);
  EXPECT_EQ(fp8_tile_scale(1e-40f), std::numeric_limits<float>::min());
  EXPECT_TRUE(std::isnan(fp8_tile_scale(infinity)));
}

TEST(Fp8Block, ATileThatIsNotFiniteIsNanAndNothingElse) {
  std::vector<float> values(std::size_t{130} * 130, 1.0f);
  values[129 * 130 + 7] = nan;
  const Fp8Block out = through_fp8_block(values, 130, 130);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(std::isnan(out.decoded[i]), i / 130 >= 128 && i % 130 < 128) << i;
}

// A line of the goldens: a name, numbers in hexadecimal.
TEST(BlockFormats, AgreeWithMlDtypes) {
  std::ifstream goldens(NIBBLE_SOURCE_DIR "/tests/data/formats/blocks.txt");
  ASSERT_TRUE(goldens.is_open());
  std::string line;
  std::array<int, 5> compared{};
  while (std::getline(goldens, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    std::string name, word;
    fields >> name;
    std::vector<std::uint32_t> numbers;
    while (fields >> word) numbers.push_back(static_cast<std::uint32_t>(std::stoul(word, nullptr, 16)));
    const std::size_t block = name == "nvfp4" ? 16 : name == "fp8_block" ? 64 : 32;
    const std::size_t codes = name == "fp8_block" || name == "mxfp8" ? block : block / 2;
    ASSERT_EQ(numbers.size(), 1 + block + 1 + codes) << line;  // global scale, values, scale, codes
    std::vector<float> values;
    for (std::size_t i = 0; i < block; ++i) values.push_back(std::bit_cast<float>(numbers[1 + i]));
    std::vector<std::uint8_t> found(codes), expected;
    for (std::size_t i = 0; i < codes; ++i)
      expected.push_back(static_cast<std::uint8_t>(numbers[2 + block + i]));
    std::uint32_t scale = 0;
    std::uint8_t byte = 0;
    if (name == "nvfp4") {
      nvfp4_encode(values, std::bit_cast<float>(numbers[0]), found.data(), &byte);
      ++compared[0];
    } else if (name == "mxfp8") {
      mxfp8_encode(values, found.data(), &byte);
      ++compared[1];
    } else if (name == "mxfp4_up" || name == "mxfp4_floor") {
      const bool up = name == "mxfp4_up";
      mxfp4_encode(values, up ? Mxfp4Scale::round_up : Mxfp4Scale::ocp_floor, found.data(), &byte);
      ++compared[up ? 2 : 3];
    } else {
      float wide = 0;
      fp8_block_encode({1, 64}, values.data(), found.data(), &wide);
      scale = std::bit_cast<std::uint32_t>(wide);
      ++compared[4];
    }
    if (name != "fp8_block") scale = byte;
    ASSERT_EQ(scale, numbers[1 + block]) << line;
    ASSERT_EQ(found, expected) << line;
  }
  for (const int count : compared) EXPECT_GE(count, 60);
}

}  // namespace
}  // namespace nibble
