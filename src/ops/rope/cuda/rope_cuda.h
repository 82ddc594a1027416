// rope_angles (ops/rope/rope.h) on a GPU, with the CPU's bits: once a step, for qkv_cuda of every layer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble {

// All pointers are to device memory.
struct RopeAnglesCudaArgs {
  const float* inv_freq = nullptr;  // [half]
  float concentration = 1.0f;
  const std::int32_t* positions = nullptr;  // [rows]
  int rows = 0;
  int half = 0;
  float* cos = nullptr;  // [rows, half]
  float* sin = nullptr;  // [rows, half]
};

void rope_angles_cuda(const RopeAnglesCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
