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

  MoeWeights weights() const {
    return {.gate_up = {gate_up.experts.begin(), gate_up.experts.end()},
            .down = {down.experts.begin(), down.experts.end()},
            .gate_up_bias = gate_up_bias.data(),
            .down_bias = down_bias.data(),
            .unit = gpt_oss_unit(7.0f)};
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

TEST(Moe, AgreesWithDoublePrecision) {
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

TEST(Moe, ARowsBitsDependOnNeitherItsBatchNorItsPlaceNorTheThreads) {
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

TEST(Moe, HasTheSameBitsWithEveryKernelAndNumberOfThreads) {
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

// Rows of one parity of a matrix.
struct Parity {
  std::vector<std::uint8_t> blocks, scales;
  Mxfp4Checkpoint matrix;

  Parity(const Mxfp4Checkpoint& from, int parity) {
    const std::int64_t of_row = from.cols / mxfp4_block;
    for (std::int64_t row = parity; row < from.rows; row += 2) {
      blocks.insert(blocks.end(), from.blocks + row * of_row * mxfp4_block_bytes,
                    from.blocks + (row + 1) * of_row * mxfp4_block_bytes);
      scales.insert(scales.end(), from.scales + row * of_row, from.scales + (row + 1) * of_row);
    }
    matrix = {blocks.data(), scales.data(), from.rows / 2, from.cols};
  }
};

TEST(Moe, GateAndUpApartGiveTheBitsOfPairs) {
  std::mt19937 random(8);
  const Layer layer(random, 3, 2, 96, 64);
  const std::vector<float> x = random_floats(random, 21 * 96);
  const auto [ids, weights] = MoeRouting(random, 21, layer.experts, layer.top_k);
  ThreadPool threads(2);
  OpContext context{threads};
  std::vector<Parity> gates, ups;
  for (const Mxfp4Checkpoint& each : layer.gate_up.experts) {
    gates.emplace_back(each, 0);
    ups.emplace_back(each, 1);
  }
  for (const GatedUnit& unit : {gpt_oss_unit(7.0f), silu_unit, clamped_silu_unit(2.0f)}) {
    for (const bool biased : {true, false}) {
      MoeWeights pairs = layer.weights();
      pairs.unit = unit;
      if (!biased) pairs.gate_up_bias = pairs.down_bias = nullptr;
      MoeWeights apart = pairs;
      apart.gate_up.clear();
      for (const Parity& each : gates) apart.gate.emplace_back(each.matrix);
      for (const Parity& each : ups) apart.up.emplace_back(each.matrix);
      EXPECT_EQ(moe_with_room(context, apart, x, ids, weights),
                moe_with_room(context, pairs, x, ids, weights));
    }
  }
}

// SiLU and no biases, as most models have it, in every format that experts come in.
TEST(Moe, PlainExpertsAgreeWithDoublePrecisionInEveryFormat) {
  std::mt19937 random(9);
  constexpr int experts = 3, top_k = 2, hidden = 160, width = 96, rows = 11;
  std::vector<RandomNvfp4> nvfp4;
  for (int i = 0; i < 3 * experts; ++i)
    nvfp4.emplace_back(random, 1, i % 3 == 2 ? hidden : width, i % 3 == 2 ? width : hidden);
  std::vector<std::vector<Bf16>> bf16;
  for (int i = 0; i < 3 * experts; ++i) bf16.push_back(random_bf16(random, hidden * width, 0.1f));
  const std::vector<float> x = random_floats(random, rows * hidden);
  const auto [ids, weights] = MoeRouting(random, rows, experts, top_k);
  ThreadPool threads(2);
  OpContext context{threads};
  for (const bool four_bits : {false, true}) {
    const auto matrix = [&](int expert, int which) -> WeightMatrix {
      const std::size_t i = static_cast<std::size_t>(3 * expert + which);
      const int matrix_rows_ = which == 2 ? hidden : width, cols = which == 2 ? width : hidden;
      if (!four_bits) return Bf16Matrix{bf16[i].data(), matrix_rows_, cols};
      return Nvfp4Matrix{nvfp4[i].codes_of(0), reinterpret_cast<const E4m3*>(nvfp4[i].scales_of(0)),
                         nvfp4[i].tensor_scales[0], matrix_rows_, cols};
    };
    MoeWeights layer;
    for (int e = 0; e < experts; ++e) {
      layer.gate.push_back(matrix(e, 0));
      layer.up.push_back(matrix(e, 1));
      layer.down.push_back(matrix(e, 2));
    }
    const auto exact_row = [&](const WeightMatrix& of, int row, const std::vector<double>& in) {
      std::vector<float> values(in.size());
      decode_weight_row(of, row, values.data());
      double sum = 0;
      for (std::size_t i = 0; i < in.size(); ++i) sum += double{values[i]} * in[i];
      return sum;
    };
    const std::vector<float> out = moe_with_room(context, layer, x, ids, weights);
    for (int row = 0; row < rows; ++row) {
      const std::vector<double> in(x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
      std::vector<double> expected(hidden, 0.0);
      for (int choice = 0; choice < top_k; ++choice) {
        const std::size_t slot = static_cast<std::size_t>(row * top_k + choice);
        const std::size_t e = static_cast<std::size_t>(ids[slot]);
        std::vector<double> h;
        for (int i = 0; i < width; ++i) {
          const double gate = exact_row(layer.gate[e], i, in), up = exact_row(layer.up[e], i, in);
          h.push_back(gate / (1 + std::exp(-gate)) * up);
        }
        for (int i = 0; i < hidden; ++i)
          expected[static_cast<std::size_t>(i)] += weights[slot] * exact_row(layer.down[e], i, h);
      }
      for (int i = 0; i < hidden; ++i) {
        const double want = expected[static_cast<std::size_t>(i)];
        ASSERT_NEAR(out[static_cast<std::size_t>(row * hidden + i)], want, 2e-4 * (1 + std::fabs(want)));
      }
    }
  }
}

TEST(Moe, AScaleOfNotANumberReachesOnlyTheRowsRoutedToIt) {
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
