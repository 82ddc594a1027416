// route_top_k: which experts each row goes to, and with what weight, in float32. A tie goes to the lower
// index.
//
//   softmax_of_chosen  the k largest logits; a softmax over those alone
//   softmax_of_all     the k largest logits; a softmax over all, and where it renormalises over the chosen
//   sigmoid            s = sigmoid(logit); the k largest of s + bias among the `top_groups` groups whose two
//                      largest have the largest sum; weights s, where it renormalises over
//                      their sum + 1e-20, times `scale`
//
// Experts come in descending order of what they were chosen by. Sums run in that order, over all experts in
// theirs.
#pragma once

#include <cstdint>

#include "ops/op_context.h"

namespace nibble {

enum class RouterKind : std::uint8_t { softmax_of_chosen, softmax_of_all, sigmoid };

struct RouterRule {
  RouterKind kind = RouterKind::softmax_of_chosen;
  bool renormalise = false;
  const float* bias = nullptr;  // [experts]; null: none. Sigmoid alone, as are:
  int groups = 1;               // of neighbouring experts, as many in each, at most 64
  int top_groups = 1;
  float scale = 1.0f;
};

struct RouteTopKArgs {
  const float* logits = nullptr;  // [rows, experts]
  int rows = 0;
  int experts = 0;
  int top_k = 0;                       // 1..experts
  std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  float* expert_weights = nullptr;     // [rows, top_k]
  RouterRule rule;
};

void route_top_k(OpContext& context, const RouteTopKArgs& args);

}  // namespace nibble
