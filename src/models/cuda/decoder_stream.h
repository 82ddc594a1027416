// The residual stream of a decoder on one GPU: what passes from block to block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "models/cuda/cuda_model.h"
#include "models/cuda/cuda_part.h"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "tensor/device_arena.h"

namespace nibble {

// What a block leaves for the next norm: the residual, and what to add to it, one row a token or the products
// of its experts.
struct PendingSum {
  const float* residual = nullptr;
  const float* delta = nullptr;
  ExpertParts experts;
};

// Where a choice behind a row's chosen experts lies: what a shared expert joins them as.
struct SharedChoice {
  float* product = nullptr;  // [hidden]; null: the step has no such place
  std::int32_t* id = nullptr;
  float* weight = nullptr;
  // The launch behind the routed experts begins only when the rows that they take are there.
  bool rows_are_there = false;
};

// The rows for which a rank does what concerns a row alone: norms, the output projection, the router, the sum
// of its experts. Of few rows every rank does all; of many each its own, and gives the others what they
// multiply.
struct RankRows {
  int first = 0, count = 0;
  int a_rank = 0;  // the first rank's, a multiple of token_group; 0: every rank does all
  bool are_shared() const { return a_rank > 0; }
};

// Pointers are to device memory.
struct DecoderStream {
  const PeerRoom* room = nullptr;    // null: this rank is alone, or has a merge
  const RankMerge* merge = nullptr;  // as CudaPlace's
  int hidden = 0;
  float eps = 0;
  bool norms_less_one = false;           // factors are 1 + what the norms say
  float* residual = nullptr;             // [rows, hidden]
  float* delta = nullptr;                // [rows, hidden]: what the last block adds to the residual
  std::uint8_t* normed_tiles = nullptr;  // token tiles of hidden columns
  LinearCudaWorkspace linear;
  LaunchCounts* launches = nullptr;  // null: nobody counts
  RoundingRoom rounding;             // where inputs of FP8 weights are rounded to FP8; null: they are not

  bool is_alone() const { return room == nullptr && merge == nullptr; }
  void count(LaunchKind kind) const {
    if (launches != nullptr) launches->add(kind);
  }
  static DecoderStream lay_out(const ModelConfig& config, const CudaForwardLimits& limits, CudaPlace& place,
                               int processors, DeviceArena& arena);
  // Columns of a row of activations in bfloat16.
  int padded() const { return DenseShape{0, hidden}.padded_cols(); }
  RankRows rows_of_rank(const CudaForwardInput& input) const;
  std::size_t tile_bytes(int tokens) const { return DenseShape{0, hidden}.token_bytes(tokens); }
  // residual = pending's; normed_tiles (and `plain`, if given) = norm(residual), of the rank's rows.
  AddRmsNormCudaArgs norm(const Bf16* weight, const PendingSum& pending, Bf16* plain,
                          const RankRows& own) const;
  // That norm, and of shared rows normed_tiles from all ranks to all.
  Status norm_tiles(const AddRmsNormCudaArgs& norm, const RankRows& own, cudaStream_t stream) const;
  // Shared rows of a matrix in the room, from the rank that has them to all. meets: GatherColumnsCudaArgs's.
  Status gather_rows(void* rows, std::size_t row_bytes, const RankRows& own, bool meets,
                     cudaStream_t stream) const;
};

// Where a matrix lies, of as many rows and columns.
DenseTiles lay_out_tiles(DeviceArena& arena, std::int64_t rows, std::int64_t cols);

// A matrix in blocks, in the format that its checkpoint has.
using DenseBlocks = std::variant<BlockMatrices<E4m3Codes>, BlockMatrices<Nvfp4Codes>>;
// y: [x.tokens, y_stride]
Status multiply_blocks(const DecoderStream& decoder, const DenseBlocks& weight, const TokenTiles& x, float* y,
                       int y_stride, cudaStream_t stream);

// The same of experts, or of one matrix, in blocks.
template <class Codes>
BlockMatrices<Codes> lay_out_blocks(DeviceArena& arena, std::int64_t experts, std::int64_t rows,
                                    std::int64_t cols) {
  const BlockShape<Codes> shape{static_cast<int>(rows), static_cast<int>(cols)};
  const std::size_t count = static_cast<std::size_t>(experts);
  BlockMatrices<Codes> made{.experts = static_cast<int>(experts), .shape = shape};
  made.data = arena.take<std::uint8_t>(count * shape.bytes());
  if (Codes::scaled) made.factors = arena.take<BlockFactors>(count * shape.factors());
  return made;
}
// In FP8 with a scale a row.
inline BlockMatrices<E4m3Codes> lay_out_fp8_rows(DeviceArena& arena, std::int64_t experts, std::int64_t rows,
                                                 std::int64_t cols) {
  BlockMatrices<E4m3Codes> made = lay_out_blocks<E4m3Codes>(arena, experts, rows, cols);
  made.row_scales = arena.take<float>(static_cast<std::size_t>(experts * rows));
  return made;
}

}  // namespace nibble
