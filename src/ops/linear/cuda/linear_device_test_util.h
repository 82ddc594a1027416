// What tests of dense products on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/linear_cuda.h"

namespace nibble {

// The kernels' workspace, and whether they leave it as the next launch needs it.
struct LinearWorkspace {
  DeviceBuffer few_sums, many_sums, arrived;

  explicit LinearWorkspace(int tokens)
      : few_sums(device_bytes(linear_few_floats(processors_of_device(), tokens) * 4, 0)),
        many_sums(device_bytes(linear_many_floats(processors_of_device()) * 4, 0xff)),
        arrived(device_bytes(static_cast<std::size_t>(processors_of_device()) * 4, 1)) {
    clear_linear_workspace(get(), processors_of_device(), tokens, nullptr);
  }
  LinearCudaWorkspace get() {
    return {few_sums.as<float>(), many_sums.as<float>(), arrived.as<std::uint32_t>()};
  }
  ~LinearWorkspace() {
    std::vector<std::uint32_t> sums(few_sums.size() / 4);
    few_sums.copy_to(std::span(sums));
    EXPECT_EQ(std::count(sums.begin(), sums.end(), absent_bits), std::ssize(sums))
        << "the next launch would take a sum of this one";
    std::vector<std::uint32_t> counts(static_cast<std::size_t>(processors_of_device()), 1);
    arrived.copy_to(std::span(counts));
    for (const std::uint32_t count : counts) EXPECT_EQ(count, 0u) << "the next launch would add too early";
  }
};

inline DeviceBuffer tiles_of(const std::vector<Bf16>& matrix, DenseShape shape) {
  const DeviceBuffer rows = on_device(matrix);
  DeviceBuffer tiles = device_bytes(shape.bytes(), 0xff);
  const Status status =
      repack_dense_cuda(reinterpret_cast<const Bf16*>(rows.data()), shape, tiles.as<std::uint8_t>(), nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  return tiles;
}

inline DeviceBuffer tokens_of(const std::vector<Bf16>& x, int cols) {
  const DeviceBuffer plain = on_device(x);
  const int tokens = static_cast<int>(x.size()) / cols;
  DeviceBuffer packed =
      device_bytes(DenseShape{0, cols}.token_bytes(tokens), 0xff);  // NaN past the last token
  const Status status = pack_tokens_cuda(reinterpret_cast<const Bf16*>(plain.data()), tokens, cols, cols,
                                         packed.as<std::uint8_t>(), nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  return packed;
}

}  // namespace nibble
