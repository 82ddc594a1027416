// On a GPU, or on its emulation: a feed-forward's unit and a shared expert's sum against the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "ops/cuda/device_test_util.h"
#include "ops/gated_mlp/cuda/gated_mlp_cuda.h"
#include "ops/gated_mlp/gated_mlp.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using GatedMlpOnTheGpu = OnTheGpu;

TEST_F(GatedMlpOnTheGpu, TheUnitIsTheCpusWithinItsExponential) {
  std::mt19937 random(1);
  for (const auto& [rows, width, up, stride] :
       {std::tuple{3, 96, 128, 224}, {17, 64, 64, 128}, {1, 20, 20, 40}}) {
    const std::vector<float> gate_up = random_floats(random, static_cast<std::size_t>(rows * stride), 3.0f);
    DeviceBuffer from = on_device(gate_up);
    const DenseShape shape{0, width};
    DeviceBuffer out = device_bytes(shape.token_bytes(rows), 0xff);
    const Status status = gate_rows_cuda({.gate_up = from.as<float>(),
                                          .stride = stride,
                                          .up = up,
                                          .rows = rows,
                                          .width = width,
                                          .unit = silu_unit,
                                          .out = out.as<std::uint8_t>()},
                                         nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<std::uint8_t> tiles(shape.token_bytes(rows));
    out.copy_to(std::span(tiles));
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < shape.padded_cols(); ++column) {
        const std::size_t at = token_offset(shape.blocks(), row, column);
        const float found = Bf16{static_cast<std::uint16_t>(tiles[at] | tiles[at + 1] << 8)}.to_float();
        const float* const values = gate_up.data() + row * stride;
        const float expected = column < width ? gated(values[column], values[up + column], silu_unit) : 0;
        ASSERT_NEAR(found, expected, std::fabs(expected) * 0x1p-8f) << row << ", " << column;
      }
    }
  }
}

TEST_F(GatedMlpOnTheGpu, TheSharedExpertsSumHasTheCpusBits) {
  std::mt19937 random(2);
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  const int rows = 5, hidden = 72, top_k = 11, apart = 3;  // more choices than are added at a time
  const std::size_t values = static_cast<std::size_t>(rows * hidden);
  const std::vector<float> shared = random_floats(random, values), logits = random_floats(random, rows, 4.0f),
                           products = random_floats(random, values * top_k),
                           weights = random_floats(random, static_cast<std::size_t>(rows * top_k));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * top_k), 1);
  ids[top_k + 1] = ids[top_k + 9] = -1;
  std::fill_n(ids.begin() + 2 * top_k, top_k, -1);
  std::vector<float> logits_apart(static_cast<std::size_t>(rows * apart));
  for (std::size_t row = 0; row < logits.size(); ++row) logits_apart[row * apart] = logits[row];
  std::vector<float> routed(values);
  for (std::size_t i = 0; i < values; ++i) {
    const std::size_t row = i / static_cast<std::size_t>(hidden),
                      column = i % static_cast<std::size_t>(hidden);
    bool any = false;
    for (std::size_t slot = row * top_k; slot < (row + 1) * top_k; ++slot) {
      if (ids[slot] < 0) continue;
      const float term = weights[slot] * products[slot * static_cast<std::size_t>(hidden) + column];
      routed[i] = any ? routed[i] + term : term;
      any = true;
    }
  }
  DeviceBuffer device_shared = on_device(shared), device_logits = on_device(logits),
               device_products = on_device(products), device_weights = on_device(weights),
               device_ids = on_device(ids), device_routed = on_device(routed),
               device_logits_apart = on_device(logits_apart);
  for (const bool shares : {false, true}) {
    std::vector<float> expected = routed;
    add_shared(context, {.sum = expected.data(),
                         .shared = shared.data(),
                         .logits = shares ? logits.data() : nullptr,
                         .rows = rows,
                         .hidden = hidden});
    for (const bool of_products : {false, true}) {
      DeviceBuffer out = device_bytes(values * sizeof(float), 0xff);
      AddSharedCudaArgs args{.shared = device_shared.as<float>(),
                             .logits = shares ? device_logits.as<float>() : nullptr,
                             .out = out.as<float>(),
                             .rows = rows,
                             .hidden = hidden};
      if (of_products) {
        args.experts = {device_products.as<float>(), device_ids.as<std::int32_t>(),
                        device_weights.as<float>(), top_k};
      } else {
        args.routed = device_routed.as<float>();
        if (shares) args.logits = device_logits_apart.as<float>(), args.logit_stride = apart;
      }
      const Status status = add_shared_cuda(args, nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<float> found(values);
      out.copy_to(std::span(found));
      EXPECT_EQ(found, expected) << shares << of_products;
    }
  }
}

TEST_F(GatedMlpOnTheGpu, RefusesShapesByName) {
  EXPECT_NE(gate_rows_cuda({.stride = 10, .up = 5, .rows = 1, .width = 5}, nullptr).message().find("5 of 10"),
            std::string::npos);
  EXPECT_NE(add_shared_cuda({.rows = 1, .hidden = 6}, nullptr).message().find("not 6"), std::string::npos);
  EXPECT_NE(add_shared_cuda({.rows = 1, .hidden = 8}, nullptr).message().find("a sum or the products"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
