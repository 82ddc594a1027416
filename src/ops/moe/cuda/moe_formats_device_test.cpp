// On a GPU: what the expert layer makes of each code and scale of a format.
#include "ops/moe/cuda/moe_device_test_util.h"

namespace nibble {
namespace {

using MoeFormatsOnTheGpu = OnTheGpu;

TEST_F(MoeFormatsOnTheGpu, Mxfp4HoldsAtTheExtremesOfTheScale) {
  std::mt19937 random(6);
  for (const int top : {128, 140}) {
    MoeTestLayer<Mxfp4Weights> layer(random, 2, 1, 64, 64);
    for (std::uint8_t& scale : layer.down.host.scales)
      scale = static_cast<std::uint8_t>(top - static_cast<int>(random() % 100));
    layer.down.exponent_shift = layer.gate_up.exponent_shift =
        granule_exponent_shift({.largest = static_cast<unsigned>(top), .below_nan = 255});
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, 4 * 64);
    const MoeRouting routing(random, 4, 2, 1);
    EXPECT_LT(relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                             layer.on_cpu(x, routing.ids, routing.weights)),
              3e-3);
  }
}

// As a checkpoint may have it: what a scale over zeros is says nothing.
TEST_F(MoeFormatsOnTheGpu, AScaleOverZerosMovesNoOtherWeightsBits) {
  std::mt19937 random(15);
  MoeTestLayer<Mxfp4Weights> layer(random, 2, 1, 64, 64);
  for (Mxfp4Weights* matrix : {&layer.gate_up, &layer.down}) {
    for (int i = 0; i < mxfp4_block_bytes; ++i)  // zeros of both signs
      matrix->host.blocks[static_cast<std::size_t>(5 * mxfp4_block_bytes + i)] = i % 2 == 0 ? 0x80 : 0x08;
  }
  const std::vector<Bf16> x = random_bf16(random, 4 * 64);
  const MoeRouting routing(random, 4, 2, 1);
  std::vector<float> found[2];
  for (const bool wild : {false, true}) {
    for (Mxfp4Weights* matrix : {&layer.gate_up, &layer.down}) matrix->host.scales[5] = wild ? 254 : 120;
    layer.upload();
    for (Mxfp4Weights* matrix : {&layer.gate_up, &layer.down}) {
      EXPECT_EQ(granule_exponent_shift(matrix->range), 0);
      EXPECT_LT(matrix->range.largest, 128u);
    }
    found[wild] = layer.on_gpu(x, routing.ids, routing.weights);
    EXPECT_EQ(layer.on_gpu(x, routing.ids, routing.weights, 0, true), found[wild]);
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_LT(relative_error(found[1], layer.on_cpu(x, routing.ids, routing.weights)), 1e-3);
}

// h is 7 x_i where x is one of the unit vectors, so that outputs are columns of `down`: gate_up's gates are
// zero with a bias that saturates, its up projections a unit matrix less one.
TEST_F(MoeFormatsOnTheGpu, Nvfp4MultipliesAllCodesByAllScalesExactly) {
  constexpr int width = 64, granule_of_scale = nvfp4_block;
  std::mt19937 random(11);
  for (const bool by_row : {true, false}) {  // of `down`: a NaN hides what else its row has
    MoeTestLayer<Nvfp4Weights> layer(random, 1, 1, width, width);
    RandomNvfp4 &up = layer.gate_up.host, &down = layer.down.host;
    std::fill(up.codes.begin(), up.codes.end(), std::uint8_t{0});
    std::fill(up.scales.begin(), up.scales.end(), E4m3::from_float(1).bits);
    up.tensor_scales = {1};
    layer.gate_up.of_odd_rows = layer.down.of_odd_rows = 1;
    down.tensor_scales = {0.0123f};
    const std::uint8_t one = E2m1::from_float(1).bits;
    for (std::size_t i = 0; i < width; ++i) {
      up.codes[(2 * i + 1) * width / 2 + i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? one : one << 4);
      layer.gate_up_bias[2 * i] = Bf16::from_float(7);
      layer.gate_up_bias[2 * i + 1] = Bf16::from_float(-1);
      layer.down_bias[i] = Bf16::from_float(0);
    }
    const auto scale_of = [&](int row, int group) {
      return static_cast<std::uint8_t>(by_row ? row * 4 + group : group * width + row);
    };
    for (int row = 0; row < width; ++row) {
      for (int col = 0; col < width; col += 2) {
        const std::size_t at = static_cast<std::size_t>(row * width + col);
        down.codes[at / 2] = static_cast<std::uint8_t>(col % 16 | (col % 16 + 1) << 4);
        down.scales[at / nvfp4_block] = scale_of(row, col / granule_of_scale);
      }
    }
    layer.upload();
    std::vector<Bf16> x(width * width);
    for (std::size_t token = 0; token < width; ++token) x[token * width + token] = Bf16::from_float(1);
    const std::vector<std::int32_t> ids(width, 0);
    for (const bool many : {false, true}) {
      const std::vector<float> out = layer.on_gpu(x, ids, std::vector<float>(width, 1.0f), 0, many);
      for (int row = 0; row < width; ++row) {
        bool nan = false;
        for (int group = 0; group < 4; ++group) nan = nan || scale_of(row, group) % 128 == 127;
        for (int token = 0; token < width; ++token) {
          const float found = out[static_cast<std::size_t>(token * width + row)];
          if (nan) {
            EXPECT_TRUE(std::isnan(found)) << "row " << row << ", token " << token;
            continue;
          }
          const float weight = E2m1{static_cast<std::uint8_t>(token % 16)}.to_float() *
                               E4m3{scale_of(row, token / granule_of_scale)}.to_float();
          EXPECT_EQ(found, 7 * weight * 0.0123f) << "scale " << int{scale_of(row, token / granule_of_scale)}
                                                 << ", code " << token % 16 << ", many " << many;
        }
      }
    }
  }
}

// Whether gates above up projections become the rows of those that take turns.
template <class Weights>
bool takes_one_above_the_other(int cols) {
  std::mt19937 random(12);
  Weights apart(random, 2, 96, cols), together(random, 2, 96, cols);
  const auto interleave = [](const auto& from, auto& to) {
    const std::ptrdiff_t row_size = std::ssize(from) / (2 * 96);
    for (int expert = 0; expert < 2; ++expert) {
      for (int row = 0; row < 96; ++row)
        std::copy_n(from.begin() + (expert * 96 + row) * row_size, row_size,
                    to.begin() + (expert * 96 + row % 48 * 2 + row / 48) * row_size);
    }
  };
  interleave(apart.host.codes, together.host.codes);
  interleave(apart.host.scales, together.host.scales);
  apart.upload(true);
  together.upload();
  std::vector<std::uint8_t> found(2 * apart.shape.bytes()), expected(found.size());
  apart.granules.copy_to(std::span(found));
  together.granules.copy_to(std::span(expected));
  return found == expected;
}

TEST_F(MoeFormatsOnTheGpu, TakeGateAndUpProjectionsOneAboveTheOther) {
  EXPECT_TRUE(takes_one_above_the_other<Nvfp4Weights>(80));
  EXPECT_TRUE(takes_one_above_the_other<Int4Weights>(96));
}

// Zero, what is no number, and what lies over codes of zero do not count.
TEST_F(MoeFormatsOnTheGpu, TheRangeOfScalesInInt4IsThatOfWeightsThatAreNotZero) {
  std::mt19937 random(17);
  Int4Weights weights(random, 2, 16, 64);
  for (Bf16& scale : weights.host.scales) scale = Bf16::from_float(0.01f);
  weights.host.scales[3] = Bf16::from_float(-1.5f);
  weights.host.scales[5] = Bf16::from_float(0x1p-100f);
  weights.host.scales[7] = Bf16::from_float(0);
  weights.host.scales[9].bits = 0x7fc0;
  weights.host.scales[11] = Bf16::from_float(5);
  std::fill_n(weights.host.codes.begin() + 11 * int4_group / 2, int4_group / 2, std::uint8_t{0x88});
  weights.upload();
  EXPECT_EQ(weights.range.largest, Bf16::from_float(1.5f).bits);
  EXPECT_EQ(int4_infinity - weights.range.below_infinity, Bf16::from_float(0x1p-100f).bits);
  EXPECT_TRUE(int4_scales_fit(weights.range));
}

TEST_F(MoeFormatsOnTheGpu, ShapesWithoutGranulesAreRefusedByName) {
  const Status nvfp4 = repack_nvfp4_cuda({.experts = 1, .shape = {16, 24}}, nullptr);
  EXPECT_EQ(nvfp4.code(), StatusCode::invalid_argument);
  EXPECT_NE(nvfp4.message().find("an NVFP4 matrix of 16 x 24"), std::string::npos) << nvfp4.message();
  const Status int4 = repack_int4_cuda({.experts = 1, .shape = {16, 48}}, nullptr);
  EXPECT_EQ(int4.code(), StatusCode::invalid_argument);
  EXPECT_NE(int4.message().find("an int4 matrix of 16 x 48"), std::string::npos) << int4.message();
  const MoeNvfp4CudaWeights weights{.gate_up = {nullptr, 1, {48, 32}}, .down = {nullptr, 1, {32, 24}}};
  const Status layer = moe_few_cuda(weights, {.x_stride = 64, .tokens = 1, .top_k = 1}, nullptr);
  EXPECT_NE(layer.message().find("its columns of 16"), std::string::npos) << layer.message();
}

TEST_F(MoeFormatsOnTheGpu, ManyTokensOfMoreExpertsThanTheirTableHoldsAreRefused) {
  std::uint8_t room = 0;
  std::uint32_t counters = 0;
  const MoeMxfp4CudaWeights weights{.gate_up = {nullptr, 641, {64, 32}}, .down = {nullptr, 641, {32, 32}}};
  const MoeCudaArgs args{
      .x_stride = 64, .tokens = 1, .top_k = 1, .workspace = {.many = &room, .many_counters = &counters}};
  const Status status = moe_many_cuda(weights, args, nullptr);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("up to 640 experts, not 641"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace nibble
