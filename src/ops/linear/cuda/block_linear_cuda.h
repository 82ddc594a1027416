// Products with matrices in blocks (block_matrices.h) on a GPU of compute capability 9.0, for bfloat16
// activations: y = x W^T. A row's bits depend on nothing else: neither on the rows beside it, nor on which of
// the kernels ran. FP8 lies in the order of steps, NVFP4 in that of quarters.
//
// Of FP8 x may be rounded to FP8 first (rounded_rows.h), which has a kernel and an order of additions of its
// own (block_products_rounded.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/block_paths.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/linear/cuda/rounded_rows.h"

namespace nibble {

// All pointers are to device memory.
template <class Codes>
struct BlockLinearCudaArgs {
  TokenTiles x;                 // of weight.shape.cols
  BlockMatrices<Codes> weight;  // one matrix, [out, in]
  float* y = nullptr;           // [x.tokens, y_stride]
  int y_stride = 0;             // at least out, even
  BlockLinearPath path = BlockLinearPath::fastest;
  // The launch behind begins when x is there, not before, and takes it for granted. Of few rows alone.
  bool lets_beside = false;
  RoundingRoom rounding = {};  // of FP8 alone; with it the path is that of rounded rows
};
// Whether so many tokens are taken by the path for few.
template <class Codes>
bool block_linear_takes_few(const BlockShape<Codes>& shape, int tokens);

// Queues the product on the stream. A refusal names what the shapes lack.
Status block_linear_cuda(const BlockLinearCudaArgs<E4m3Codes>& args, cudaStream_t stream);
Status block_linear_cuda(const BlockLinearCudaArgs<Nvfp4Codes>& args, cudaStream_t stream);

// Rows [experts, rows, cols] of a checkpoint, and where they go. All pointers are to device memory. NVFP4 has
// repack_nvfp4_cuda (ops/moe/cuda/moe_cuda.h).
template <class Codes>
struct BlockRepack {
  const std::uint8_t* codes = nullptr;  // at a multiple of 16
  int experts = 1;
  BlockShape<Codes> shape;
  // The rows of gate_proj lie before those of up_proj, which become the even and the odd ones.
  bool halves = false;
  ColumnOrder order = ColumnOrder::quarters;
  std::uint8_t* out = nullptr;  // [experts, shape.bytes()]
  // Of codes that have scales, placed before: [experts, shape.factors()]. Where a code is no number, those of
  // its granule's even or odd rows become none.
  BlockFactors* factors = nullptr;
};
Status repack_blocks_cuda(const BlockRepack<Bf16Codes>& repack, cudaStream_t stream);
Status repack_blocks_cuda(const BlockRepack<E4m3Codes>& repack, cudaStream_t stream);

// Scales of tiles of 128 x 128 or of rows, in float32 or bfloat16, and the factors that become of them.
struct BlockScales {
  const void* scales = nullptr;  // [experts, parts, tiles of a part's rows, tiles of columns], or
                                 // [experts, parts, a part's rows]
  bool narrow = false;           // bfloat16
  int experts = 1;
  BlockShape<E4m3Codes> shape;
  bool halves = false;              // two parts, gate_proj and up_proj
  int first_row = 0;                // of one part, that is the first here; a multiple of 16
  BlockFactors* factors = nullptr;  // [experts, shape.factors()]
  float* row_scales = nullptr;      // [experts, shape.rows]: where those of rows go; null: they are of tiles
};
void place_block_scales_cuda(const BlockScales& scales, cudaStream_t stream);

}  // namespace nibble
