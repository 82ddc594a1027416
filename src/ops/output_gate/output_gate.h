// Attention whose heads have a gate on what they give (Qwen3-Next): one matrix projects queries and gates, by
// head [q, gate].
//
//   out = out * sigmoid(gate), element by element, rounded as the input of a product
#pragma once

#include "ops/op_context.h"

namespace nibble {

struct SplitGatesArgs {
  const float* projected = nullptr;  // [rows, heads, 2, head_dim]
  int rows = 0;
  int heads = 0;
  int head_dim = 0;
  float* q = nullptr;      // [rows, heads, head_dim]
  float* gates = nullptr;  // [rows, heads, head_dim]
};
void split_gates(OpContext& context, const SplitGatesArgs& args);

struct GateOutputsArgs {
  float* out = nullptr;          // [rows, width], updated
  const float* gates = nullptr;  // [rows, width]
  int rows = 0;
  int width = 0;
};
void gate_outputs(OpContext& context, const GateOutputsArgs& args);

}  // namespace nibble
