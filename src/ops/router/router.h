// route_top_k: which experts each row goes to, and with what weight. The k largest logits, a tie going to
// the lower index, in descending order; then a softmax over those k alone.
#pragma once

#include <cstdint>

#include "ops/op_context.h"

namespace nibble {

struct RouteTopKArgs {
  const float* logits = nullptr;  // [rows, experts]
  int rows = 0;
  int experts = 0;
  int top_k = 0;                       // 1..experts
  std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  float* expert_weights = nullptr;     // [rows, top_k], each row sums to 1
};

void route_top_k(OpContext& context, const RouteTopKArgs& args);

}  // namespace nibble
