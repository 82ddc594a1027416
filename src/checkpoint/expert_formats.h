// What readers of configs with many experts check once they know formats and numbers.
#pragma once

#include "checkpoint/architecture.h"

namespace nibble {

// More matrices than any model has, and few enough to be looked up one by one.
Status check_experts_in_all(const ModelConfig& config);
// An expert layer is one op: its matrices have one format. They are mlp.experts.N.{gate,up,down}_proj.
Status check_expert_formats(const ModelConfig& config);
// Blocks of a 4-bit format are whole, in every matrix that is visited.
Status check_columns(const ModelConfig& config,
                     void (*visit_weights)(const ModelConfig& config, const VisitWeight& visit));

}  // namespace nibble
