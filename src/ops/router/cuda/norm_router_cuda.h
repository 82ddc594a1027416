// For few rows, in one launch: what add_rms_norm_cuda, the router's linear_cuda and route_top_k_cuda or
// route_sigmoid_cuda do one after the other, with the same bits. In decode those three took some ten
// microseconds a layer of gpt-oss, most of it between and at the ends of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/router/cuda/route_sigmoid_cuda.h"

namespace nibble {

inline constexpr int norm_router_max_rows = 128;
inline constexpr std::int32_t no_expert = -1;

// What the kernel's blocks share between launches; one launch at a time may use it.
struct NormRouterCudaWorkspace {
  float* sums = nullptr;  // [norm_router_sums(experts)], all absent before and after a launch (absent.h)
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
};
constexpr std::size_t norm_router_sums(int experts) {
  return dense_k_chunks * static_cast<std::size_t>(experts);
}

// All pointers are to device memory.
struct NormRouterCudaArgs {
  // residual_out = residual + delta, which is not residual; norm rows [rows, norm_stride], zeros past hidden.
  const float* residual = nullptr;    // [rows, hidden]
  const float* delta = nullptr;       // [rows, hidden]
  const Bf16* norm_weight = nullptr;  // [hidden]
  bool weight_less_one = false;       // the factor is 1 + weight
  float eps = 0;
  float* residual_out = nullptr;            // [rows, hidden]
  Bf16* norm = nullptr;                     // [rows, norm_stride]
  int norm_stride = 0;                      // at least hidden rounded up to 64, a multiple of 8
  std::uint8_t* norm_tiles = nullptr;       // the same in token tiles; null: not wanted
  DenseTiles router;                        // [experts, hidden]
  const Bf16* router_bias = nullptr;        // [experts]; null: none
  int rows = 0;                             // at most norm_router_max_rows
  const std::int32_t* row_limit = nullptr;  // as route_top_k_cuda's
  int top_k = 0;                            // 1..32, at most experts
  bool of_all = false;                      // as route_top_k_cuda's
  std::optional<SigmoidRule> sigmoid;       // the choice is route_sigmoid_cuda's
  std::int32_t* expert_ids = nullptr;       // [rows, top_k]
  float* expert_weights = nullptr;          // [rows, top_k]
  NormRouterCudaWorkspace workspace;
};

// Whether it takes as many rows of that shape.
bool norm_router_takes(const DenseShape& router, int rows);

Status norm_router_cuda(const NormRouterCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
