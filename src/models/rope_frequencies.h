// How fast a model's pairs of dimensions turn, from its config.
#pragma once

#include "checkpoint/model_config.h"
#include "ops/rope/rope.h"

namespace nibble {

RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace nibble
