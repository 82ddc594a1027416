#include "ops/gated_mlp/gated_mlp.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/linear/linear.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

TEST(GatedMlp, AgreesWithDoublePrecisionAndARowDependsOnItselfAlone) {
  std::mt19937 random(21);
  ThreadPool threads(2);
  OpContext context{threads};
  constexpr int rows = 5, hidden = 96, width = 70;
  const std::vector<float> x = random_floats(random, rows * hidden);
  const std::vector<Bf16> gate = random_bf16(random, width * hidden, 0.1f),
                          up = random_bf16(random, width * hidden, 0.1f),
                          down = random_bf16(random, hidden * width, 0.1f);
  const GatedMlpWeights weights{.gate = Bf16Matrix{gate.data(), width, hidden},
                                .up = Bf16Matrix{up.data(), width, hidden},
                                .down = Bf16Matrix{down.data(), hidden, width},
                                .unit = silu_unit};
  AlignedBytes workspace(linear_workspace_bytes(rows, hidden));
  const auto run = [&](const float* from, int count) {
    std::vector<float> y(static_cast<std::size_t>(count * hidden), NAN), h(rows * width), u(rows * width);
    gated_mlp(context, weights,
              {.x = from,
               .rows = count,
               .y = y.data(),
               .gate = h.data(),
               .up = u.data(),
               .workspace = workspace.span()});
    return y;
  };
  const std::vector<float> y = run(x.data(), rows);
  for (int row = 0; row < rows; ++row) {
    std::vector<double> h;
    const auto product = [&](const std::vector<Bf16>& of, int i) {
      double sum = 0;
      for (int k = 0; k < hidden; ++k)
        sum += double{of[static_cast<std::size_t>(i * hidden + k)].to_float()} *
               x[static_cast<std::size_t>(row * hidden + k)];
      return sum;
    };
    for (int i = 0; i < width; ++i) {
      const double g = product(gate, i);
      h.push_back(g / (1 + std::exp(-g)) * product(up, i));
    }
    for (int i = 0; i < hidden; ++i) {
      double exact = 0;
      for (int k = 0; k < width; ++k)
        exact +=
            double{down[static_cast<std::size_t>(i * width + k)].to_float()} * h[static_cast<std::size_t>(k)];
      ASSERT_NEAR(y[static_cast<std::size_t>(row * hidden + i)], exact, 1e-5 * (1 + std::fabs(exact)));
    }
    const std::vector<float> alone = run(x.data() + row * hidden, 1);
    for (int i = 0; i < hidden; ++i)
      ASSERT_EQ(alone[static_cast<std::size_t>(i)], y[static_cast<std::size_t>(row * hidden + i)]);
  }
}

TEST(AddShared, TakesTheShareOfItsLogitOrAll) {
  ThreadPool threads(2);
  OpContext context{threads};
  const std::vector<float> shared = {1, -2, 4, 8}, logits = {0, -200};
  std::vector<float> sum = {10, 10, 10, 10};
  const AddSharedArgs args{
      .sum = sum.data(), .shared = shared.data(), .logits = logits.data(), .rows = 2, .hidden = 2};
  add_shared(context, args);
  EXPECT_EQ(sum, (std::vector<float>{10.5f, 9, 10, 10}));
  add_shared(context, {.sum = sum.data(), .shared = shared.data(), .rows = 2, .hidden = 2});
  EXPECT_EQ(sum, (std::vector<float>{11.5f, 7, 14, 18}));
}

}  // namespace
}  // namespace nibble
