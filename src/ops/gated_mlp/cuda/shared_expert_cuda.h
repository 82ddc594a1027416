// A shared expert of few rows in one launch: what linear_cuda or block_linear_cuda, gate_rows_cuda, the
// second product and the product with the logit's row do one after the other, with the same bits. In decode
// each of those five took 4 to 5 microseconds a layer, most of it between kernels, for weights that come in 1
// to 2.
//
// It needs nothing of the routed experts. So it may run beside them: launched behind their kernel, which then
// lets dependents begin only once the rows are there (`rows_are_there`).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <variant>

#include "base/status.h"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/row/gated_unit.h"

namespace nibble {

inline constexpr int shared_expert_max_rows = token_group;

using SharedExpertMatrix = std::variant<DenseTiles, BlockMatrices<E4m3Codes>, BlockMatrices<Nvfp4Codes>>;

// All pointers are to device memory.
struct SharedExpertCudaArgs {
  TokenTiles x;                // of `hidden` columns, up to shared_expert_max_rows tokens
  SharedExpertMatrix gate_up;  // [.., hidden]: gates' rows, and from row `up` on those of the ups
  SharedExpertMatrix down;     // [hidden, width], of the same kind
  int width = 0;               // a multiple of 64
  int up = 0;                  // a multiple of 16
  GatedUnit unit;
  DenseTiles share;                     // [1, hidden]: a row's logit of its share; without data: shares of 1
  bool rows_are_there = false;          // the launch ahead let this one begin only then
  std::uint8_t* activations = nullptr;  // token tiles of `width` columns
  std::uint32_t* arrived = nullptr;     // a word where the grid meets, 0 before the first launch
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
  float* out = nullptr;            // [x.tokens, hidden], without the shares
  float* logits = nullptr;         // [x.tokens]; null: not wanted
  // Of one row: the share, or 1, and any expert's number, as a choice behind the routed ones has them.
  float* weight = nullptr;
  std::int32_t* id = nullptr;
};

// Whether it takes as many rows of such matrices.
bool shared_expert_takes(const SharedExpertMatrix& gate_up, const SharedExpertMatrix& down, int width,
                         int rows);

Status shared_expert_cuda(const SharedExpertCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
