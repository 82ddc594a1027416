// What a feed-forward that every row takes (ops/gated_mlp/gated_mlp.h) has on a GPU beside its products: the
// unit between them, and the sum of what a layer's tokens share and what their chosen experts gave.
//
// Order. A shared expert's sum is the CPU's: what the chosen experts gave, added as moe_cuda.h says, plus
// share * shared, each operation rounded; share = 1 / (1 + fixed_exp(-logit)), or 1 where there are no
// logits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/row/gated_unit.h"

namespace nibble {

// All pointers are to device memory.
struct GateRowsCudaArgs {
  const float* gate_up = nullptr;  // [rows, stride]: a row's gates from column 0 on, its ups from `up` on
  int stride = 0;                  // a multiple of 4, as is `up`
  int up = 0;
  int rows = 0;
  int width = 0;
  GatedUnit unit;
  std::uint8_t* out = nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h) of `width` columns, then zeros
};
Status gate_rows_cuda(const GateRowsCudaArgs& args, cudaStream_t stream);

struct AddSharedCudaArgs {
  // One of the two; `routed` may be `out`.
  const float* routed = nullptr;  // [rows, hidden]
  ExpertParts experts;
  const float* shared = nullptr;  // [rows, hidden]
  const float* logits = nullptr;  // [rows], each logit_stride behind the one before; null: shares of 1
  int logit_stride = 1;
  float* out = nullptr;  // [rows, hidden]
  int rows = 0;
  int hidden = 0;  // a multiple of 4
};
Status add_shared_cuda(const AddSharedCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
