// The search against trying every candidate with the formats' own decoders, in double precision.
#include "quantize/scale_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> heavy(4.0f);
  std::vector<float> values(count);
  for (float& value : values) value = heavy(random) * spread;
  return values;
}

double squared_error(std::span<const float> values, std::span<const float> decoded) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += std::pow(static_cast<double>(values[i]) - static_cast<double>(decoded[i]), 2);
  return sum;
}

// The error of E2M1 codes at a scale, each rounded to the nearest.
double e2m1_error(std::span<const float> values, double scale) {
  double sum = 0;
  for (const float value : values) {
    double best = std::numeric_limits<double>::infinity();
    for (std::uint8_t code = 0; code < 16; ++code)
      best = std::min(
          best, std::fabs(static_cast<double>(value) - static_cast<double>(E2m1{code}.to_float()) * scale));
    sum += best * best;
  }
  return sum;
}

TEST(ScaleSearch, Mxfp4TakesThePowerOfTwoWithTheLeastError) {
  int moved = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::vector<float> values = random_values(32, seed, 0.03f);
    std::uint8_t codes[16], scale = 0, plain = 0, plain_codes[16];
    search_mxfp4(values, Mxfp4Scale::round_up, codes, &scale);
    mxfp4_encode(values, Mxfp4Scale::round_up, plain_codes, &plain);
    std::vector<float> decoded(32);
    mxfp4_decode(codes, &scale, decoded);
    double best = std::numeric_limits<double>::infinity();
    for (int byte = plain - 1; byte <= plain + 1; ++byte)
      best = std::min(best, e2m1_error(values, std::ldexp(1.0, byte - 127)));
    ASSERT_LE(squared_error(values, decoded), best * (1 + 1e-5));
    moved += scale != plain;
  }
  EXPECT_GT(moved, 30);
}

TEST(ScaleSearch, Nvfp4TakesTheScaleWithTheLeastErrorOfItsNeighbours) {
  int moved = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::vector<float> values = random_values(16, seed, 0.03f);
    constexpr float global = 5000;
    std::uint8_t codes[8], scale = 0, plain = 0, plain_codes[8];
    search_nvfp4(values, global, codes, &scale);
    nvfp4_encode(values, global, plain_codes, &plain);
    std::vector<float> decoded(16);
    nvfp4_decode(codes, &scale, global, decoded);
    double best = std::numeric_limits<double>::infinity();
    for (int code = std::max(plain - 4, 0); code <= std::min(plain + 6, 126); ++code)
      best = std::min(
          best, e2m1_error(values, static_cast<double>(E4m3{static_cast<std::uint8_t>(code)}.to_float()) /
                                       static_cast<double>(global)));
    ASSERT_LE(squared_error(values, decoded), best * (1 + 1e-5));
    moved += scale != plain;
  }
  EXPECT_GT(moved, 100);
}

TEST(ScaleSearch, EightBitFormatsNeverGetWorse) {
  int better = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<float> values = random_values(std::size_t{40} * 160, seed, 0.03f);
    std::vector<std::uint8_t> codes(values.size()), scales(values.size() / 32);
    std::vector<float> plain(values.size()), searched(values.size()), tile_scales(2);
    mxfp8_encode(values, codes.data(), scales.data());
    mxfp8_decode(codes.data(), scales.data(), plain);
    search_mxfp8(values, codes.data(), scales.data());
    mxfp8_decode(codes.data(), scales.data(), searched);
    EXPECT_LE(squared_error(values, searched), squared_error(values, plain));
    const Fp8Band band{40, 160};
    fp8_block_encode(band, values.data(), codes.data(), tile_scales.data());
    fp8_block_decode(band, codes.data(), tile_scales.data(), plain.data());
    search_fp8_block(band, values.data(), codes.data(), tile_scales.data());
    fp8_block_decode(band, codes.data(), tile_scales.data(), searched.data());
    EXPECT_LE(squared_error(values, searched), squared_error(values, plain));
    better += squared_error(values, searched) < squared_error(values, plain);
  }
  EXPECT_GT(better, 0) << "of FP8 tiles";
}

TEST(ScaleSearch, ZerosAndWhatIsNotFiniteAreEncodedPlainly) {
  std::vector<float> values(64, 0.0f);
  values[40] = std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> codes(64), scales(4), plain_codes(64), plain_scales(4);
  search_mxfp4(values, Mxfp4Scale::ocp_floor, codes.data(), scales.data());
  mxfp4_encode(values, Mxfp4Scale::ocp_floor, plain_codes.data(), plain_scales.data());
  EXPECT_EQ(scales, plain_scales);
  EXPECT_EQ(codes, plain_codes);
  search_nvfp4(values, 7.0f, codes.data(), scales.data());
  nvfp4_encode(values, 7.0f, plain_codes.data(), plain_scales.data());
  EXPECT_EQ(scales, plain_scales);
  search_mxfp8(values, codes.data(), scales.data());
  mxfp8_encode(values, plain_codes.data(), plain_scales.data());
  EXPECT_EQ(scales, plain_scales);
  EXPECT_EQ(codes, plain_codes);
}

}  // namespace
}  // namespace nibble
