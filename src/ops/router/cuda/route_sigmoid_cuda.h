// route_top_k (ops/router/router.h) by its rule `sigmoid` on a GPU, with the CPU's bits: choices, ties to the
// lower index, weights and the order of their sum. A choice that is no number ranks below all others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"

namespace nibble {

inline constexpr int route_sigmoid_most_experts = 512;
inline constexpr int route_sigmoid_most_groups = 64;

// How a row's experts follow from its logits; pointers are to device memory.
struct SigmoidRule {
  const float* bias = nullptr;  // [experts], added for the choice alone; null: none
  int groups = 1;
  int top_groups = 1;
  bool renormalise = false;
  float scale = 1.0f;
};

// All pointers are to device memory.
struct RouteSigmoidCudaArgs {
  const float* logits = nullptr;  // [rows, experts]
  int rows = 0;
  const std::int32_t* row_limit = nullptr;  // as route_top_k_cuda's, with first_row
  int first_row = 0;
  int experts = 0;
  int top_k = 0;  // 1..32, at most the experts of the groups that are chosen from
  SigmoidRule rule;
  std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  float* expert_weights = nullptr;     // [rows, top_k]
};

// Refuses what no kernel chooses by.
Status check_sigmoid_rule(const SigmoidRule& rule, int experts, int top_k);

Status route_sigmoid_cuda(const RouteSigmoidCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
