// What doctor's checks of a GPU share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/linear_cuda.h"
#include "tensor/device_buffer.h"

namespace nibble {

// Numbers between -1 and 1, the same ones every time.
class Numbers {
 public:
  std::uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }
  Bf16 bf16(float most = 1.0f) {
    return Bf16::from_float(most * (static_cast<float>(next() >> 8) / 8388608.0f - 1.0f));
  }
  std::vector<Bf16> list(std::size_t count, float most = 1.0f) {
    std::vector<Bf16> values(count);
    for (Bf16& value : values) value = bf16(most);
    return values;
  }

 private:
  std::uint32_t state_ = 1;
};

template <class T>
Result<DeviceBuffer> on_device(const std::vector<T>& values) {
  return DeviceBuffer::copy_of(std::span<const T>(values));
}

inline Result<DeviceBuffer> zeroed(std::size_t bytes) {
  NIBBLE_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(bytes));
  buffer.fill(0);
  return buffer;
}

// Whether the first values found are as expected, but for this share of their length.
inline bool is_near(const std::vector<double>& expected, std::span<const float> found, double share) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    apart += (expected[i] - double{found[i]}) * (expected[i] - double{found[i]});
    size += expected[i] * expected[i];
  }
  return apart <= size * share * share;
}

// What linear_cuda needs for up to `tokens`.
struct LinearRoom {
  DeviceBuffer few_sums, many_sums, arrived;

  LinearCudaWorkspace workspace() {
    return {few_sums.as<float>(), many_sums.as<float>(), arrived.as<std::uint32_t>()};
  }
};
inline Result<LinearRoom> linear_room(int tokens) {
  const int blocks = processors_of_device();
  LinearRoom room;
  NIBBLE_ASSIGN(room.few_sums, zeroed(linear_few_floats(blocks, tokens) * sizeof(float)));
  NIBBLE_ASSIGN(room.many_sums, zeroed(linear_many_floats(blocks) * sizeof(float)));
  NIBBLE_ASSIGN(room.arrived, zeroed(static_cast<std::size_t>(blocks) * sizeof(std::uint32_t)));
  clear_linear_workspace(room.workspace(), blocks, tokens, nullptr);
  return room;
}

inline std::vector<std::byte> bytes_of(const DeviceBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  buffer.copy_to(std::span(bytes));
  return bytes;
}

// Kernels beside their scalar forms on the CPU: empty, or what is wrong.
Result<std::string> check_norm();
Result<std::string> check_router();
Result<std::string> check_embedding();
Result<std::string> check_sampling();
// Matrices in blocks, beside double precision.
Result<std::string> check_fp8_linear();
Result<std::string> check_rounded_linear();
Result<std::string> check_nvfp4_linear();
Result<std::string> check_fp8_experts();
Result<std::string> check_bf16_experts();
// Experts in granules, beside double precision.
Result<std::string> check_mxfp4_experts();
Result<std::string> check_nvfp4_experts();
Result<std::string> check_int4_experts();
// What stands in attention's place in some models.
Result<std::string> check_latent_attention();
Result<std::string> check_gated_delta();
// Of 2, 4 or 8 of so many GPUs: what they found of each other. rounds: that are timed; 1 on an emulation.
Result<std::string> check_peers(int gpus, int rounds);
Result<std::string> check_exchange(int gpus, int rounds);
Result<std::string> check_merges(int gpus, int rounds);
// Beside the kernels whose work they do in one launch.
Result<std::string> check_norm_router();
Result<std::string> check_norm_linear();
Result<std::string> check_qkv();

}  // namespace nibble
