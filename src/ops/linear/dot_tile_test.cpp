#include "ops/linear/dot_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

const DotKernels& scalar() { return dot_kernels().back(); }

std::vector<const float*> pointers(const std::vector<float>& x, int cols) {
  std::vector<const float*> each;
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(cols)) each.push_back(x.data() + i);
  return each;
}

std::vector<float> inputs_of(std::mt19937& random, InputValues values, std::size_t count) {
  std::vector<float> x = random_floats(random, count, 100.0f);
  if (values == InputValues::bf16) {
    for (float& value : x) value = Bf16::from_float(value).to_float();
  }
  return x;
}

// A NaN equals a NaN; everything else bit for bit.
bool same_bits(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)); }

class EveryKernel : public testing::TestWithParam<std::size_t> {
 protected:
  const DotKernels& kernel() const { return dot_kernels()[GetParam()]; }
  void SetUp() override {
    if (!kernel().supported()) GTEST_SKIP() << "this machine has no " << kernel().name;
  }
};

TEST_P(EveryKernel, GivesTheScalarBitsOnBf16) {
  std::mt19937 random(1);
  for (const auto& [rows, cols, count] :
       {std::tuple{16, 32, 1}, {16, 2880, 3}, {40, 96, 64}, {7, 64, 2}, {33, 45, 5}, {16, 160, 7}}) {
    const std::vector<Bf16> weights = random_bf16(random, static_cast<std::size_t>(rows * cols), 4.0f);
    for (const InputValues values : {InputValues::any_float, InputValues::bf16}) {
      const std::vector<float> x = inputs_of(random, values, static_cast<std::size_t>(count * cols));
      const std::vector<const float*> inputs = pointers(x, cols);
      for (int row = 0; row < rows; row += tile_rows) {
        std::vector<float> expected(static_cast<std::size_t>(count * tile_rows), 7), found(expected);
        scalar().bf16({weights.data(), rows, cols}, row, inputs, values,
                      reinterpret_cast<TileTotals*>(expected.data()));
        kernel().bf16({weights.data(), rows, cols}, row, inputs, values,
                      reinterpret_cast<TileTotals*>(found.data()));
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_TRUE(same_bits(found[i], expected[i])) << rows << "x" << cols << " at " << i;
      }
    }
  }
}

TEST_P(EveryKernel, GivesTheScalarBitsOnMxfp4AtEveryScale) {
  std::mt19937 random(2);
  for (const auto& [rows, cols, count] :
       {std::tuple{16, 32, 1}, {16, 2880, 3}, {40, 96, 64}, {7, 64, 2}, {48, 160, 5}}) {
    RandomMxfp4 weights(random, 1, rows, cols);
    for (const InputValues values : {InputValues::any_float, InputValues::bf16}) {
      const std::vector<float> x = inputs_of(random, values, static_cast<std::size_t>(count * cols));
      const std::vector<const float*> inputs = pointers(x, cols);
      for (bool wild : {false, true}) {
        if (wild) {
          for (std::uint8_t& scale : weights.scales) scale = static_cast<std::uint8_t>(random());
        }
        for (int row = 0; row < rows; row += tile_rows) {
          std::vector<float> expected(static_cast<std::size_t>(count * tile_rows), 7), found(expected);
          scalar().mxfp4(weights.experts[0], row, inputs, values,
                         reinterpret_cast<TileTotals*>(expected.data()));
          kernel().mxfp4(weights.experts[0], row, inputs, values,
                         reinterpret_cast<TileTotals*>(found.data()));
          for (std::size_t i = 0; i < found.size(); ++i)
            ASSERT_TRUE(same_bits(found[i], expected[i])) << rows << "x" << cols << " at " << i;
        }
      }
    }
  }
}

TEST_P(EveryKernel, AnInputsTotalsDoNotDependOnTheOthers) {
  std::mt19937 random(3);
  RandomMxfp4 weights(random, 1, 16, 320);
  const InputValues values = InputValues::any_float;
  const std::vector<float> x = inputs_of(random, values, 9 * 320);
  const std::vector<const float*> inputs = pointers(x, 320);
  std::vector<float> together(9 * tile_rows), alone(tile_rows);
  kernel().mxfp4(weights.experts[0], 0, inputs, values, reinterpret_cast<TileTotals*>(together.data()));
  for (std::size_t i = 0; i < 9; ++i) {
    kernel().mxfp4(weights.experts[0], 0, std::span(inputs).subspan(i, 1), values,
                   reinterpret_cast<TileTotals*>(alone.data()));
    for (std::size_t r = 0; r < tile_rows; ++r) ASSERT_EQ(alone[r], together[i * tile_rows + r]);
  }
}

INSTANTIATE_TEST_SUITE_P(Dot, EveryKernel, testing::Range<std::size_t>(0, dot_kernels().size()),
                         [](const auto& instance) {
                           return std::string(dot_kernels()[instance.param].name);
                         });

TEST(DotKernels, MxFp4AddsInTheOrderOfTheContract) {
  std::mt19937 random(4);
  RandomMxfp4 weights(random, 1, 1, 96);
  const std::vector<float> x = random_floats(random, 96);
  const float* input = x.data();
  TileTotals totals;
  scalar().mxfp4(weights.experts[0], 0, {&input, 1}, InputValues::any_float, &totals);
  float total = 0;
  for (int block = 0; block < 3; ++block) {
    float chains[2] = {0, 0};
    for (int k = 0; k < 32; ++k) {
      const int byte = weights.blocks[static_cast<std::size_t>(block * 16 + k / 2)];
      const float product = E2m1{static_cast<std::uint8_t>(k % 2 ? byte >> 4 : byte & 15)}.to_float() *
                            x[static_cast<std::size_t>(block * 32 + k)];
      chains[k % 2] += product;
    }
    const float scaled =
        (chains[0] + chains[1]) * E8m0{weights.scales[static_cast<std::size_t>(block)]}.to_float();
    total += scaled;
  }
  EXPECT_EQ(totals[0], total);
  for (int r = 1; r < tile_rows; ++r) EXPECT_EQ(totals[r], 0.0f) << "rows past the end give zeros";
}

}  // namespace
}  // namespace nibble
