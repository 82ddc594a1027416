// On a GPU, or on its emulation: gates on what heads give, against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"
#include "ops/output_gate/cuda/gate_heads_cuda.h"
#include "ops/output_gate/output_gate.h"

namespace nibble {
namespace {

TEST_F(OnTheGpu, HeadsHaveTheirGates) {
  constexpr int rows = 9, heads = 3, dims = 64, width = heads * dims, stride = 2 * width + 128;
  std::mt19937 random(3);
  const std::vector<float> projected = random_floats(random, std::size_t{rows} * stride, 3.0f);
  const std::vector<Bf16> given = random_bf16(random, std::size_t{rows} * width);
  const DenseShape tiles{0, width};
  std::vector<std::uint8_t> bytes(tiles.token_bytes(rows));
  std::vector<float> expected, gates;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < width; ++column) {
      const Bf16 value = given[static_cast<std::size_t>(row * width + column)];
      std::memcpy(bytes.data() + token_offset(tiles.blocks(), row, column), &value, sizeof value);
      expected.push_back(value.to_float());
      gates.push_back(projected[static_cast<std::size_t>(row * stride + column / dims * 2 * dims + dims +
                                                         column % dims)]);
    }
  }
  DeviceBuffer out = on_device(bytes), device_projected = on_device(projected);
  const GateHeadsCudaArgs args{.out = out.as<std::uint8_t>(),
                               .gates = device_projected.as<float>() + dims,
                               .stride = stride,
                               .rows = rows,
                               .heads = heads,
                               .head_dim = dims};
  ASSERT_TRUE(gate_heads_cuda(args, nullptr).ok());
  cuda_check(cudaDeviceSynchronize());
  out.copy_to(std::span(bytes));
  ThreadPool threads(1);
  OpContext context{threads};
  gate_outputs(context, {.out = expected.data(), .gates = gates.data(), .rows = rows, .width = width});
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < width; ++column) {
      Bf16 found;
      std::memcpy(&found, bytes.data() + token_offset(tiles.blocks(), row, column), sizeof found);
      const float wanted = expected[static_cast<std::size_t>(row * width + column)];
      ASSERT_NEAR(found.to_float(), wanted, std::fabs(wanted) / 200) << row << ", " << column;
    }
  }
}

TEST_F(OnTheGpu, GatesOfOddHeadsAreRefused) {
  EXPECT_FALSE(gate_heads_cuda({.rows = 1, .heads = 1, .head_dim = 96}, nullptr).ok());
}

}  // namespace
}  // namespace nibble
