// moe_mxfp4: gpt-oss's expert layer on MXFP4 weights, for routed rows.
//
//   h = swiglu(x W1^T + b1)     W1 [2I, hidden], rows interleaved: 2i is the gate, 2i + 1 the up projection
//   swiglu: gate = min(gate, limit); up = clamp(up, -limit, limit); gate * sigmoid(1.702 gate) * (up + 1)
//   y_j = h W2^T + b2           for the row's j-th expert
//   out = ((w_0 y_0 + w_1 y_1) + w_2 y_2) + ...   in the order of the row's top-k
//
// Inner products add in the order of dot_tile.h, then the bias; the sum over experts starts with the first
// product. Nothing depends on which rows share an expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "ops/op_context.h"

namespace nibble {

struct MoeMxfp4Weights {
  std::vector<Mxfp4Checkpoint> gate_up;  // an expert: [2 * intermediate, hidden]
  std::vector<Mxfp4Checkpoint> down;     // an expert: [hidden, intermediate]
  const Bf16* gate_up_bias = nullptr;    // [experts, 2 * intermediate]
  const Bf16* down_bias = nullptr;       // [experts, hidden]
  float swiglu_limit = 7.0f;
};

struct MoeMxfp4Args {
  const float* x = nullptr;  // [rows, hidden]
  int rows = 0;
  int top_k = 0;
  const std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  const float* expert_weights = nullptr;     // [rows, top_k]
  float* out = nullptr;                      // [rows, hidden]
  // Room for intermediate results.
  float* activations = nullptr;     // [rows * top_k, intermediate]
  float* products = nullptr;        // [rows * top_k, hidden]
  std::int32_t* slots = nullptr;    // [rows * top_k]: (row, choice) pairs grouped by expert
  std::int32_t* offsets = nullptr;  // [experts + 1]: where each expert's slots begin
  // At least moe_workspace_bytes, at a multiple of 64. Lost when the next op uses it.
  std::span<std::byte> workspace;
};

// For `slots` = rows * top_k; inputs is the wider of hidden and intermediate.
std::size_t moe_workspace_bytes(int slots, int experts, int inputs);

void moe_mxfp4(OpContext& context, const MoeMxfp4Weights& weights, const MoeMxfp4Args& args);

}  // namespace nibble
