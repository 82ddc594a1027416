// route_top_k (ops/router/router.h) on a GPU: the k largest logits of a row, a tie going to the lower index,
// and a softmax over those alone, added in descending order, or over all: lane i of 32 adds experts i, i +
// 32,
// ... in order, then lanes are added as a butterfly (16, 8, 4, 2, 1 apart). A softmax over all whose chosen
// weights are made to sum to 1 is one over the chosen. A NaN ranks below everything.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"

namespace nibble {

// All pointers are to device memory.
struct RouteTopKCudaArgs {
  const float* logits = nullptr;  // [rows, experts]
  int rows = 0;
  // One number; rows from it on choose no expert (-1): they fill a launch of fixed size up. Null: all count.
  const std::int32_t* row_limit = nullptr;
  int first_row = 0;  // what the first of `rows` is called there
  int experts = 0;
  int top_k = 0;  // 1..32, at most experts
  // Weights are those of a softmax over all experts, not made to sum to 1 over the chosen.
  bool of_all = false;
  std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  float* expert_weights = nullptr;     // [rows, top_k]
};

Status route_top_k_cuda(const RouteTopKCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
