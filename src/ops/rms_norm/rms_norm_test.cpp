#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

TEST(AddRmsNorm, UpdatesTheResidualAndAgreesWithDoublePrecision) {
  std::mt19937 random(1);
  ThreadPool threads(2);
  OpContext context{threads};
  for (int hidden : {1, 15, 16, 64, 160, 2880}) {
    const int rows = 5;
    const std::size_t n = static_cast<std::size_t>(rows * hidden);
    const std::vector<float> before = random_floats(random, n, 30.0f), delta = random_floats(random, n);
    const std::vector<Bf16> weight = random_bf16(random, static_cast<std::size_t>(hidden));
    std::vector<float> residual = before, out(n, NAN);
    add_rms_norm(context, {.residual = residual.data(),
                           .delta = delta.data(),
                           .weight = weight.data(),
                           .out = out.data(),
                           .rows = rows,
                           .hidden = hidden,
                           .eps = 1e-5f});
    for (std::size_t row = 0; row < 5; ++row) {
      const std::size_t width = static_cast<std::size_t>(hidden);
      double squares = 0;
      for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
        ASSERT_EQ(residual[i], before[i] + delta[i]);
        squares += static_cast<double>(residual[i]) * residual[i];
      }
      const double scale = 1 / std::sqrt(squares / hidden + 1e-5);
      for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
        const double exact = residual[i] * scale * weight[i % width].to_float();
        ASSERT_NEAR(out[i], exact, 1e-6 * std::abs(exact) + 1e-9);
      }
    }
  }
}

TEST(AddRmsNorm, WithoutADeltaTheResidualStays) {
  ThreadPool threads(1);
  OpContext context{threads};
  std::vector<float> residual = {3, 4}, out(2);
  const std::vector<Bf16> weight = {Bf16::from_float(1), Bf16::from_float(2)};
  add_rms_norm(context, {.residual = residual.data(),
                         .weight = weight.data(),
                         .out = out.data(),
                         .rows = 1,
                         .hidden = 2,
                         .eps = 0});
  EXPECT_EQ(residual, (std::vector<float>{3, 4}));
  EXPECT_FLOAT_EQ(out[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(out[1], 8 / std::sqrt(12.5f));
}

TEST(AddRmsNorm, EpsKeepsARowOfZerosFinite) {
  ThreadPool threads(1);
  OpContext context{threads};
  std::vector<float> residual(32), out(32, NAN);
  const std::vector<Bf16> weight(32, Bf16::from_float(1));
  add_rms_norm(context, {.residual = residual.data(),
                         .weight = weight.data(),
                         .out = out.data(),
                         .rows = 1,
                         .hidden = 32,
                         .eps = 1e-5f});
  for (float value : out) EXPECT_EQ(value, 0.0f);
}

TEST(HeadRmsNorm, NormsEachHeadByItself) {
  std::mt19937 random(5);
  constexpr int rows = 3, heads = 4, head_dim = 64;
  const std::vector<float> given = random_floats(random, rows * heads * head_dim);
  const std::vector<Bf16> weight = random_bf16(random, head_dim);
  std::vector<float> x = given;
  ThreadPool threads(2);
  OpContext context{.threads = threads, .activations = InputValues::bf16};
  head_rms_norm(context, {.x = x.data(),
                          .weight = weight.data(),
                          .rows = rows,
                          .heads = heads,
                          .head_dim = head_dim,
                          .eps = 1e-6f});
  for (std::size_t head = 0; head < rows * heads; ++head) {
    double square = 0;
    for (std::size_t i = 0; i < head_dim; ++i)
      square += double{given[head * head_dim + i]} * given[head * head_dim + i];
    for (std::size_t i = 0; i < head_dim; ++i) {
      const double exact =
          given[head * head_dim + i] / std::sqrt(square / head_dim + 1e-6) * weight[i].to_float();
      ASSERT_NEAR(x[head * head_dim + i], exact, 1e-5 * (1 + std::fabs(exact)));
    }
  }
}

TEST(RmsNorm, AZeroCentredWeightStandsForOneMore) {
  std::mt19937 random(6);
  ThreadPool threads(2);
  constexpr int heads = 3, head_dim = 40;
  const std::vector<float> given = random_floats(random, heads * head_dim);
  const std::vector<Bf16> weight = random_bf16(random, head_dim);
  std::vector<float> by_head = given, residual = given, by_row(given.size());
  OpContext context{.threads = threads, .activations = InputValues::bf16};
  head_rms_norm(context, {.x = by_head.data(),
                          .weight = weight.data(),
                          .rows = 1,
                          .heads = heads,
                          .head_dim = head_dim,
                          .eps = 1e-6f,
                          .zero_centred = true});
  add_rms_norm(context, {.residual = residual.data(),
                         .weight = weight.data(),
                         .out = by_row.data(),
                         .rows = heads,
                         .hidden = head_dim,
                         .eps = 1e-6f,
                         .zero_centred = true});
  for (std::size_t head = 0; head < heads; ++head) {
    double square = 0;
    for (std::size_t i = 0; i < head_dim; ++i)
      square += double{given[head * head_dim + i]} * given[head * head_dim + i];
    for (std::size_t i = 0; i < head_dim; ++i) {
      const std::size_t at = head * head_dim + i;
      const double exact =
          given[at] / std::sqrt(square / head_dim + 1e-6) * (1.0 + double{weight[i].to_float()});
      ASSERT_NEAR(by_head[at], exact, 1e-5 * (1 + std::fabs(exact)));
      ASSERT_EQ(by_row[at], context.activation(by_head[at])) << "rounded for the next product";
    }
  }
}

}  // namespace
}  // namespace nibble
