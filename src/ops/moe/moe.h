// moe: a layer of gated experts for routed rows.
//
//   h = unit(x G^T + b, x U^T + b)   G, U [width, hidden]: the gate and the up projection, as matrices of
//   their
//                                    own or as rows 2i and 2i + 1 of one; unit is gated_unit.h's
//   y_j = h W^T + b                  W [hidden, width], for the row's j-th expert
//   out = ((w_0 y_0 + w_1 y_1) + w_2 y_2) + ...   in the order of the row's top-k
//
// Inner products add in the order of dot_tile.h or weight_matrix.h, then the bias where there is one; the sum
// over experts starts with the first product. Nothing depends on which rows share an expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/bf16.h"
#include "ops/linear/weight_matrix.h"
#include "ops/op_context.h"
#include "ops/row/gated_unit.h"

namespace nibble {

// A matrix an expert. Either gate_up or gate and up; these two are of one format.
struct MoeWeights {
  std::vector<WeightMatrix> gate_up;   // [2 * width, hidden], gate and up alternating
  std::vector<WeightMatrix> gate, up;  // [width, hidden]
  std::vector<WeightMatrix> down;      // [hidden, width]
  const Bf16* gate_up_bias = nullptr;  // [experts, 2 * width], alternating; null: without
  const Bf16* down_bias = nullptr;     // [experts, hidden]; null: without
  GatedUnit unit;

  // Of biases, from one expert's to the next; 0: the experts' rows above.
  std::int64_t gate_up_bias_stride = 0, down_bias_stride = 0;

  int experts() const { return static_cast<int>(down.size()); }
  int hidden() const { return weight_cols(gate.empty() ? gate_up[0] : gate[0]); }
  int width() const { return weight_cols(down[0]); }
  // A rank may have only some rows of every expert.
  int width_rows() const { return gate.empty() ? weight_rows(gate_up[0]) / 2 : weight_rows(gate[0]); }
  int hidden_rows() const { return weight_rows(down[0]); }
};

struct MoeArgs {
  const float* x = nullptr;  // [rows, hidden]
  int rows = 0;
  int top_k = 0;
  const std::int32_t* expert_ids = nullptr;  // [rows, top_k]; other experts than the weights' are left out
  int first_expert = 0;                      // the id of the weights' first
  const float* expert_weights = nullptr;     // [rows, top_k]
  float* out = nullptr;                      // [rows, hidden]
  // Room for intermediate results.
  float* activations = nullptr;     // [rows * top_k, width]
  float* products = nullptr;        // [rows * top_k, hidden]
  std::int32_t* slots = nullptr;    // [rows * top_k]: (row, choice) pairs grouped by expert
  std::int32_t* offsets = nullptr;  // [experts + 1]: where each expert's slots begin
  // At least moe_workspace_bytes, at a multiple of 64. Lost when the next op uses it.
  std::span<std::byte> workspace;
};

// For `slots` = rows * top_k; inputs is the wider of hidden and width.
std::size_t moe_workspace_bytes(int slots, int experts, int inputs);

void moe(OpContext& context, const MoeWeights& weights, const MoeArgs& args);

// The same in its three steps, for ranks that have some of the experts, or some rows of each. Slot s is
// choice s % top_k of row s / top_k. Of experts that are left out, nothing is read or written.
//   activations[s] = h, of the weights' rows only: [rows * top_k, width_rows()]
void expert_activations(OpContext& context, const MoeWeights& weights, const MoeArgs& args);
//   products[s] = y of activations[s], which are whole: [rows * top_k, width()] to [.., hidden_rows()].
// Groups of slots are those that expert_activations left behind.
void expert_products(OpContext& context, const MoeWeights& weights, const MoeArgs& args);
//   out = the weighted sum over choices, of `width` columns
void sum_choices(OpContext& context, const MoeArgs& args, int width);

}  // namespace nibble
