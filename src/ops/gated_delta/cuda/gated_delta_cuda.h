// The mixer of Qwen3-Next and Qwen3.5 on a GPU: the formulas of gated_delta.h, from rows of projections to
// the input of the output's matrix. Of sequences of one row one kernel (delta_rows) does it all, a block a
// head of values. Of sequences of more rows a first kernel (delta_inputs) convolves, normalises and finds the
// gates. Then they go by chunks: products of their rows (delta_products), updates, outputs and states
// (delta_chunks), norms (delta_norm).
//
// Order, a contract. Chunks begin at multiples of 64 positions of the sequence, blocks at multiples of 16. As
// gated_delta.h has it, but
//   - products over the keys' dimensions and over the rows of blocks are products of two bfloat16 terms a
//     number on tensor cores, sixteen k in turn, S^T k and S^T q as sums of three parts that are added behind
//     the last k (delta_terms.cuh); only what a row takes in of its own block
//     is fused multiply-adds in float32, in order;
//   - u begins with v - e^G S^T k and takes in the blocks ahead of its own, then the rows of its own; o
//   begins
//     with e^G S^T q and takes in the blocks up to its own;
//   - S' is e^G S plus, by one fused multiply-add, a sum of its own over the chunk's four blocks;
//   - a sum of squares is 32 lanes, which have neighbours of a head's dimensions, added as a butterfly (16,
//   8,
//     4, 2, 1 apart);
//   - what a head gives is normed in float32 and rounded to bfloat16 once.
// Nothing depends on where a step begins or ends, or on the batch: every cut of a sequence gives the same
// bits. Kept states, keys and updates lie as the products read them (delta_chunk.cuh), in the bytes that
// delta_state.h gives them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/gated_delta/delta_state.h"

namespace nibble {

// Heads that kernels are built for: dimensions of keys and of values.
constexpr bool delta_cuda_takes(std::int64_t key_dim, std::int64_t value_dim) {
  return (key_dim == 128 && value_dim == 128) || (key_dim == 32 && value_dim == 32) ||
         (key_dim == 16 && value_dim == 24);
}

inline constexpr int delta_cuda_taps = 4;  // of a convolution at most

// StateRows of one sequence, on the device; its borders are those from borders_at on.
struct StateRowsCuda {
  std::int32_t row_begin = 0;
  std::int32_t row_count = 0;  // 0: padding
  std::int32_t first_position = 0;
  std::int32_t slot = 0;
  std::int32_t borders_at = 0;
  std::int32_t borders = 0;
};

// Rows of a step, as layers with states read them.
struct DeltaStepCuda {
  int rows = 0;
  int sequences = 0;
  bool one_row_each = false;                      // of sequences that have any
  const StateRowsCuda* of_sequence = nullptr;     // [sequences]
  const std::int32_t* sequence_of_row = nullptr;  // [rows]; -1: of nobody
  const BorderState* borders = nullptr;           // by position within a sequence
};

// Where a row of projections has a part of a head, in floats: of the value head j of key head i at first + i
// * a_key_head + j * a_value_head, j counted within the key head.
struct HeadColumns {
  int first = 0, a_key_head = 0, a_value_head = 0;
};
struct DeltaColumns {
  HeadColumns q, k, v, z;  // of rows of `projected`
  HeadColumns b, a;        // of rows of `gates`
};

// What rows have of the rows ahead of them in their chunks.
constexpr std::int64_t delta_product_floats(const DeltaShape& shape, std::int64_t rows) {
  return rows * shape.value_heads * (2 * delta_chunk);
}

// All pointers are to device memory, those of the layer too.
struct GatedDeltaCudaArgs {
  DeltaLayer layer;
  DeltaStepCuda step;
  DeltaColumns columns;
  const float* projected = nullptr;  // [rows, projected_stride]
  const float* gates = nullptr;      // [rows, gates_stride]; may be projected
  int projected_stride = 0, gates_stride = 0;
  const float* convolution = nullptr;  // [taps, channels]
  const float* rate = nullptr;         // [value_heads]: e^A_log
  const float* bias = nullptr;         // [value_heads]
  const float* norm = nullptr;         // [value_dim]
  float eps = 0;
  float* qkv = nullptr;       // [rows, channels], written on the way; queries and keys as terms
  double* decays = nullptr;   // [rows, value_heads] likewise: g
  float* betas = nullptr;     // [rows, value_heads] likewise
  float* products = nullptr;  // [delta_product_floats] likewise
  float* mixed = nullptr;     // [rows, value_heads, value_dim] likewise
  std::uint8_t* out =
      nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h) of value_heads * value_dim columns
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
};

Status gated_delta_cuda(const GatedDeltaCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
