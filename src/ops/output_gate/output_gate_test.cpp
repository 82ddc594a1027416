#include "ops/output_gate/output_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace nibble {
namespace {

TEST(OutputGate, QueriesAndGatesAlternateByHead) {
  ThreadPool threads(2);
  OpContext context{threads};
  std::vector<float> projected(2 * 2 * 2 * 3), q(12), gates(12);
  std::iota(projected.begin(), projected.end(), 0.0f);
  split_gates(context, {.projected = projected.data(),
                        .rows = 2,
                        .heads = 2,
                        .head_dim = 3,
                        .q = q.data(),
                        .gates = gates.data()});
  EXPECT_EQ(q, (std::vector<float>{0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20}));
  EXPECT_EQ(gates, (std::vector<float>{3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23}));
}

TEST(OutputGate, ScalesByTheSigmoidAndRoundsForTheNextProduct) {
  ThreadPool threads(2);
  const std::vector<float> gates = {0, 200, -200, 1.5f};
  for (const InputValues values : {InputValues::any_float, InputValues::bf16}) {
    OpContext context{.threads = threads, .activations = values};
    std::vector<float> out = {3, 3, 3, 1.00390625f};
    gate_outputs(context, {.out = out.data(), .gates = gates.data(), .rows = 2, .width = 2});
    EXPECT_EQ(out[0], 1.5f);
    EXPECT_EQ(out[1], 3.0f);
    EXPECT_EQ(out[2], 0.0f);
    const double exact = 1.00390625 / (1 + std::exp(-1.5));
    EXPECT_NEAR(out[3], exact, values == InputValues::bf16 ? 0.002 : 1e-7);
    EXPECT_EQ(out[3], context.activation(out[3]));
  }
}

}  // namespace
}  // namespace nibble
