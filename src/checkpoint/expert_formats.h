// What readers of configs with many experts check once they know formats and numbers.
#pragma once

#include "checkpoint/architecture.h"

namespace nibble {

// More matrices than any model has, and few enough to be looked up one by one.
Status check_experts_in_all(const ModelConfig& config);
// What the config says of formats, once all else is read: of each module one thing, of an expert layer, which
// is one op, one format in all its matrices, mlp.experts.N.{gate,up,down}_proj, and blocks of a 4-bit format
// that are whole.
Status check_formats(const ModelConfig& config,
                     void (*visit_weights)(const ModelConfig& config, const VisitWeight& visit));

}  // namespace nibble
