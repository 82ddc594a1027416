// A model for the tests of plans whose shape does not matter.
#pragma once

#include "plan/model_traits.h"

namespace nibble {

inline ModelTraits small_model() {
  ModelTraits model{.name = "small",
                    .layers = 2,
                    .hidden = 64,
                    .vocabulary = 128,
                    .max_positions = 512,
                    .full_layers = 2,
                    .heads = 8,
                    .kv_heads = 8,
                    .query_dim = 64,
                    .value_dim = 64,
                    .kv_values = 1024,
                    .experts = 8,
                    .experts_per_token = 2,
                    .expert_width = 64,
                    .expert_layers = 2,
                    .expert_format = StoredFormat::mxfp4};
  model.weights = {{.name = "all", .values = 1 << 20, .bytes = 1 << 20}};
  return model;
}

}  // namespace nibble
