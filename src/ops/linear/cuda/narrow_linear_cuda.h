// linear (linear_cuda.h) with a matrix of few rows for few tokens, which may run beside the launch ahead. A
// row's bits are those of linear_cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {

inline constexpr int narrow_linear_most_tiles = 4;

// All pointers are to device memory.
struct NarrowLinearCudaArgs {
  TokenTiles x;
  DenseTiles weight;
  float* y = nullptr;  // [x.tokens, y_stride]
  int y_stride = 0;    // at least weight.shape.rows
  // x was there before the launch ahead let this one begin (BlockLinearCudaArgs::lets_beside).
  bool rows_are_there = false;
};

bool narrow_linear_takes(const DenseShape& weight, int tokens);
// Queues the product on the stream. A refusal names what the shapes lack.
Status narrow_linear_cuda(const NarrowLinearCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
