#include "ops/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/moe/moe_reference.h"
#include "ops/moe/moe_with_room.h"
#include "ops/op_test_util.h"
#include "ops/row/clamped_swiglu.h"

namespace nibble {
namespace {

struct Layer {
  int experts, top_k;
  RandomMxfp4 gate_up, down;
  std::vector<Bf16> gate_up_bias, down_bias;

  Layer(std::mt19937& random, int experts_, int top_k_, int hidden, int intermediate)
      : experts(experts_),
        top_k(top_k_),
        gate_up(random, experts, 2 * intermediate, hidden),
        down(random, experts, hidden, intermediate),
        gate_up_bias(random_bf16(random, static_cast<std::size_t>(experts * 2 * intermediate))),
        down_bias(random_bf16(random, static_cast<std::size_t>(experts * hidden))) {}

  MoeMxfp4Weights weights() const {
    return {gate_up.experts, down.experts, gate_up_bias.data(), down_bias.data(), 7.0f};
  }

  std::vector<float> run(OpContext& context, const std::vector<float>& x,
                         const std::vector<std::int32_t>& ids, const std::vector<float>& w) const {
    return moe_with_room(context, weights(), x, ids, w);
  }
};

TEST(ClampedSwiglu, ClampsAsGptOssDoes) {
  EXPECT_NEAR(clamped_swiglu(10, 10, 7), 7 / (1 + std::exp(-11.914)) * 8, 1e-5);
  EXPECT_NEAR(clamped_swiglu(-10, 1, 7), -10 / (1 + std::exp(17.02)) * 2, 1e-9)
      << "a negative gate is not clamped";
  EXPECT_NEAR(clamped_swiglu(1, -20, 7), 1 / (1 + std::exp(-1.702)) * -6, 1e-6);
  EXPECT_TRUE(std::isnan(clamped_swiglu(NAN, 1, 7)));
  EXPECT_TRUE(std::isnan(clamped_swiglu(1, NAN, 7)));
}

TEST(MoeMxfp4, AgreesWithDoublePrecision) {
  std::mt19937 random(1);
  ThreadPool threads(2);
  OpContext context{threads};
  for (int top_k : {1, 2, 6}) {
    const Layer layer(random, 6, top_k, 96, 64);
    const int rows = 9;
    const std::vector<float> x = random_floats(random, 9 * 96);
    const auto [ids, weights] = MoeRouting(random, rows, layer.experts, layer.top_k);
    const std::vector<float> out = layer.run(context, x, ids, weights);
    const std::vector<double> exact = moe_reference(
        threads,
        {.top_k = top_k,
         .hidden = 96,
         .intermediate = 64,
         .gate_up_bias = layer.gate_up_bias.data(),
         .down_bias = layer.down_bias.data()},
        x, ids, weights,
        [&](int expert, int row, const float* inputs) {
          return exact_product(layer.gate_up.experts[static_cast<std::size_t>(expert)], row, inputs);
        },
        [&](int expert, int row, const float* inputs) {
          return exact_product(layer.down.experts[static_cast<std::size_t>(expert)], row, inputs);
        });
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], exact[i], 1e-4) << "row " << i / 96;
  }
}

TEST(MoeMxfp4, ARowsBitsDependOnNeitherItsBatchNorItsPlaceNorTheThreads) {
  std::mt19937 random(2);
  const Layer layer(random, 3, 2, 64, 32);
  const int rows = 220;  // so many an expert that they go in parts
  const std::vector<float> x = random_floats(random, 220 * 64);
  const auto [ids, weights] = MoeRouting(random, rows, layer.experts, layer.top_k);
  ThreadPool one(1), two(2);
  OpContext single{one}, pair{two};
  const std::vector<float> together = layer.run(pair, x, ids, weights);
  for (int row = 0; row < rows; ++row) {
    const std::vector<float> alone = layer.run(single, {x.begin() + row * 64, x.begin() + (row + 1) * 64},
                                               {ids.begin() + row * 2, ids.begin() + (row + 1) * 2},
                                               {weights.begin() + row * 2, weights.begin() + (row + 1) * 2});
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * 64)) << "row " << row;
  }
}

TEST(MoeMxfp4, HasTheSameBitsWithEveryKernelAndNumberOfThreads) {
  std::mt19937 random(5);
  const Layer layer(random, 4, 2, 160, 96);
  const std::vector<float> x = random_floats(random, 37 * 160);
  const auto [ids, weights] = MoeRouting(random, 37, layer.experts, layer.top_k);
  for (const InputValues values : {InputValues::any_float, InputValues::bf16}) {
    std::vector<float> rounded = x;
    if (values == InputValues::bf16) {
      for (float& value : rounded) value = Bf16::from_float(value).to_float();
    }
    ThreadPool one(1);
    OpContext plain{.threads = one, .dots = dot_kernels().back(), .activations = values};
    const std::vector<float> expected = layer.run(plain, rounded, ids, weights);
    for (const DotKernels& kernels : dot_kernels()) {
      if (!kernels.supported()) continue;
      for (const int count : {1, 2, 3}) {
        ThreadPool threads(count);
        OpContext context{.threads = threads, .dots = kernels, .activations = values};
        ASSERT_EQ(layer.run(context, rounded, ids, weights), expected)
            << kernels.name << ", " << count << " threads";
      }
    }
  }
}

TEST(MoeMxfp4, AScaleOfNotANumberReachesOnlyTheRowsRoutedToIt) {
  std::mt19937 random(3);
  Layer layer(random, 3, 1, 32, 32);
  layer.down.scales[0] = 255;  // expert 0, output 0
  ThreadPool threads(1);
  OpContext context{threads};
  const std::vector<float> x = random_floats(random, 2 * 32);
  const std::vector<float> out = layer.run(context, x, {0, 1}, {1, 1});
  EXPECT_TRUE(std::isnan(out[0]));
  for (std::size_t i = 1; i < 64; ++i) EXPECT_TRUE(std::isfinite(out[i]));
}

}  // namespace
}  // namespace nibble
