// add_rms_norm (ops/rms_norm/rms_norm.h) on a GPU: the residual stream, in float32, takes in a block's
// output, which may still lie in pieces, one for each chosen expert; the next block's input is its norm in
// bfloat16.
//
// Order. The experts' part is added as moe_mxfp4 adds it (ops/moe/cuda/moe_cuda.h), then to the residual. The
// sum of squares: of 256 threads, thread i takes the elements 8i .. 8i + 7, then 2048 further on, and so
// forth, in order; lanes of a warp are added as a butterfly (16, 8, 4, 2, 1 apart), warps in order. So it
// depends on the width alone. Everything else is one rounding a step as written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"

namespace nibble {

// Outputs of the chosen experts that no kernel has added up yet.
struct ExpertParts {
  const float* products = nullptr;           // [rows * top_k, hidden]; null: none
  const std::int32_t* expert_ids = nullptr;  // [rows, top_k]; -1: none
  const float* expert_weights = nullptr;     // [rows, top_k]
  int top_k = 0;
  bool crowded = false;  // the launch that makes them leaves no shared memory to blocks of the next one
};

// All pointers are to device memory.
struct AddRmsNormCudaArgs {
  const float* residual = nullptr;  // [rows, hidden]
  float* residual_out = nullptr;    // [rows, hidden], with what was added; may be residual
  const float* delta = nullptr;     // [rows, hidden]; null: nothing
  ExpertParts experts;              // instead of delta
  const Bf16* weight = nullptr;     // [hidden]
  bool weight_less_one = false;     // the factor is 1 + weight
  // The norm, in either form or both, zeros past hidden.
  Bf16* out = nullptr;                // [rows, out_stride]
  int out_stride = 0;                 // at least hidden, a multiple of 8
  std::uint8_t* out_tiles = nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h)
  int rows = 0;
  int hidden = 0;  // a multiple of 8, at most 12,256
  float eps = 0;
};

Status add_rms_norm_cuda(const AddRmsNormCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
