// linear: y = x W^T + bias. Additions in the order of dot_tile.h, then the bias.
#pragma once

#include <span>

#include "formats/bf16.h"
#include "ops/linear/dot_kernels.h"
#include "ops/linear/weight_matrix.h"
#include "ops/op_context.h"

namespace nibble {

struct LinearArgs {
  const float* x = nullptr;  // [rows, in], as context.activations says
  int rows = 0;
  WeightMatrix weight;         // [out, in]
  const Bf16* bias = nullptr;  // [out]; null: none
  float* y = nullptr;          // [rows, out]
  // At least linear_workspace_bytes(rows, in), at a multiple of 64. Lost when the next op uses it.
  std::span<std::byte> workspace;
};

std::size_t linear_workspace_bytes(int rows, int in);

void linear(OpContext& context, const LinearArgs& args);

}  // namespace nibble
