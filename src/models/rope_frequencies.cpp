#include "models/rope_frequencies.h"

namespace nibble {

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  const int rotated = static_cast<int>(config.rotary_dim);
  if (!config.yarn) return default_rope(rotated, config.rope_theta);
  const YarnScaling& yarn = *config.yarn;
  return yarn_rope(rotated, {.theta = config.rope_theta,
                             .factor = yarn.factor,
                             .beta_fast = yarn.beta_fast,
                             .beta_slow = yarn.beta_slow,
                             .original_max_position = static_cast<int>(yarn.original_max_position_embeddings),
                             .truncate = yarn.truncate,
                             .concentration = yarn.attention_factor});
}

}  // namespace nibble
