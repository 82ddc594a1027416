// linear: y = x W^T + bias for dense weights. Additions in the order of dot_tile.h, then the bias.
#pragma once

#include "formats/bf16.h"
#include "ops/linear/dot_tile.h"
#include "ops/op_context.h"

namespace nibble {

struct LinearArgs {
  const float* x = nullptr;  // [rows, weight.cols], as context.activations says
  int rows = 0;
  Bf16Matrix weight;           // [out, in]
  const Bf16* bias = nullptr;  // [out]; null: none
  float* y = nullptr;          // [rows, weight.rows]
};

void linear(OpContext& context, const LinearArgs& args);

}  // namespace nibble
