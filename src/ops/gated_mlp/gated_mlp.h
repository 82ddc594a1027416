// gated_mlp: a feed-forward that every row takes: a dense layer's, or the expert that a layer's tokens share.
//
//   y = h W^T,  h = unit(x G^T, x U^T)   G, U [width, hidden]; W [hidden, width]; unit is gated_unit.h's
//
// Additions in the order of linear.h; h is rounded as the input of a product.
#pragma once

#include <cstddef>
#include <span>

#include "formats/bf16.h"
#include "ops/linear/weight_matrix.h"
#include "ops/op_context.h"
#include "ops/row/gated_unit.h"

namespace nibble {

struct GatedMlpWeights {
  WeightMatrix gate, up;  // [width, hidden]
  WeightMatrix down;      // [hidden, width]
  GatedUnit unit;

  int width() const { return weight_rows(gate); }
};

struct GatedMlpArgs {
  const float* x = nullptr;  // [rows, hidden], as context.activations says
  int rows = 0;
  float* y = nullptr;                    // [rows, hidden, or the rows that `down` has]
  float *gate = nullptr, *up = nullptr;  // [rows, width], room; h is left in `gate`
  // At least linear_workspace_bytes(rows, the wider of hidden and width), at a multiple of 64.
  std::span<std::byte> workspace;
};
void gated_mlp(OpContext& context, const GatedMlpWeights& weights, const GatedMlpArgs& args);
// Its two halves, for ranks that have some rows of each matrix: h of gate's and up's rows, which is left in
// `gate`; and of `inner`, which is h whole, the product with down's rows.
void gated_mlp_inner(OpContext& context, const GatedMlpWeights& weights, const GatedMlpArgs& args);
void gated_mlp_outer(OpContext& context, const GatedMlpWeights& weights, const float* inner,
                     const GatedMlpArgs& args);

// What a layer's tokens share joins what the chosen experts gave: sum += share * shared, with
// share = sigmoid(logit) of the row, or 1 where there are no logits.
struct AddSharedArgs {
  float* sum = nullptr;           // [rows, hidden], updated
  const float* shared = nullptr;  // [rows, hidden]
  const float* logits = nullptr;  // [rows]; null: shares of 1
  int rows = 0;
  int hidden = 0;
};
void add_shared(OpContext& context, const AddSharedArgs& args);

}  // namespace nibble
