#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Case {
  int rows, in, out;
};

// linear with room of its own.
void run(OpContext& context, LinearArgs args) {
  AlignedBytes room(linear_workspace_bytes(args.rows, weight_cols(args.weight)));
  args.workspace = room.span();
  linear(context, args);
}

TEST(Linear, AgreesWithDoublePrecisionForEveryShapeOfTile) {
  std::mt19937 random(1);
  ThreadPool threads(2);
  OpContext context{threads};
  for (const Case& shape :
       {Case{1, 32, 8}, Case{3, 64, 7}, Case{70, 96, 21}, Case{2, 45, 1}, Case{5, 2880, 32}}) {
    const std::size_t rows = static_cast<std::size_t>(shape.rows), in = static_cast<std::size_t>(shape.in),
                      out = static_cast<std::size_t>(shape.out);
    const std::vector<float> x = random_floats(random, rows * in);
    const std::vector<Bf16> weight = random_bf16(random, out * in), bias = random_bf16(random, out);
    std::vector<float> y(rows * out, NAN);
    run(context, {.x = x.data(),
                  .rows = shape.rows,
                  .weight = Bf16Matrix{weight.data(), shape.out, shape.in},
                  .bias = bias.data(),
                  .y = y.data()});
    for (std::size_t t = 0; t < rows; ++t) {
      for (std::size_t o = 0; o < out; ++o) {
        double exact = bias[o].to_float(), magnitude = 0;
        for (std::size_t k = 0; k < in; ++k) {
          const double product = static_cast<double>(weight[o * in + k].to_float()) * x[t * in + k];
          exact += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(y[t * out + o], exact, 1e-6 * magnitude + 1e-6)
            << shape.rows << "x" << shape.in << "x" << shape.out;
      }
    }
  }
}

TEST(Linear, ARowsBitsDependOnNeitherItsBatchNorTheThreads) {
  std::mt19937 random(2);
  const int in = 160, out = 75, rows = 133;
  const std::vector<float> x = random_floats(random, static_cast<std::size_t>(rows * in));
  const std::vector<Bf16> weight = random_bf16(random, static_cast<std::size_t>(out * in));
  std::vector<float> together(static_cast<std::size_t>(rows * out)), alone(static_cast<std::size_t>(out));
  ThreadPool two(2), one(1);
  OpContext many{two}, single{one};
  run(many,
      {.x = x.data(), .rows = rows, .weight = Bf16Matrix{weight.data(), out, in}, .y = together.data()});
  for (int row = 0; row < rows; ++row) {
    run(single, {.x = x.data() + row * in,
                 .rows = 1,
                 .weight = Bf16Matrix{weight.data(), out, in},
                 .y = alone.data()});
    for (int o = 0; o < out; ++o)
      ASSERT_EQ(alone[static_cast<std::size_t>(o)], together[static_cast<std::size_t>(row * out + o)]);
  }
}

TEST(Linear, AddsInTheOrderOfTheContract) {
  std::mt19937 random(3);
  const int in = 100;
  const std::vector<float> x = random_floats(random, in);
  const std::vector<Bf16> weight = random_bf16(random, in);
  float y = 0;
  ThreadPool one(1);
  OpContext context{one};
  run(context, {.x = x.data(), .rows = 1, .weight = Bf16Matrix{weight.data(), 1, in}, .y = &y});
  float total = 0;
  for (int step = 0; step < in; step += 32) {
    float chains[2] = {0, 0};
    for (int k = step; k < std::min(in, step + 32); ++k) {
      const float product = weight[static_cast<std::size_t>(k)].to_float() * x[static_cast<std::size_t>(k)];
      chains[k % 2] += product;
    }
    total += chains[0] + chains[1];
  }
  EXPECT_EQ(y, total);
}

}  // namespace
}  // namespace nibble
