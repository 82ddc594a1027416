// What bytes and products alone allow: a step takes at least as long as its bytes at the machine's reading
// rate or its products at its multiplying rate, whichever is longer, and the sums over ranks come on top.
//
// Tokens are taken to choose their experts evenly and independently, so a step of B tokens reads
// E (1 - (1 - k/E)^B) of E experts. Real routers are skewed and read fewer.
#pragma once

#include "plan/plan.h"

namespace nibble {

struct StepCost {
  double bytes = 0;  // that one rank reads
  double flops = 0;  // of one rank
  double sums = 0;   // seconds of all-reduces
};

// `batch` sequences, each with a token after `context` positions.
StepCost decode_cost(const Plan& plan, double batch, double context);
// A prompt from its beginning, in one step.
StepCost prefill_cost(const Plan& plan, double tokens);
// 0 where the machine's rates are unknown.
double least_seconds(const Plan& plan, const StepCost& cost);

BoundPlan plan_bound(const Plan& plan);

}  // namespace nibble
