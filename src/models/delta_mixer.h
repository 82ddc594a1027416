// A layer's gated delta rule with the matrices around it (ops/gated_delta/gated_delta.h).
#pragma once

#include <vector>

#include "checkpoint/model_config.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/weight_matrix.h"
#include "plan/forward_room.h"

namespace nibble {

DeltaShape delta_shape(const ModelConfig& config);

struct DeltaMixerWeights {
  DeltaShape shape;
  bool by_key_head = false;
  WeightMatrix qkv_z, b_a;         // by head of keys: [channels + values, hidden], [2 * value_heads, hidden]
  WeightMatrix qkv, z, b, a;       // or apart: [channels, hidden], [values, hidden], [value_heads, hidden]
  WeightMatrix out;                // [hidden, values]
  std::vector<float> convolution;  // [taps, channels]
  std::vector<float> rate, bias;   // [value_heads]
  std::vector<float> norm;         // [value_dim]
};

struct DeltaMixerArgs {
  const float* x = nullptr;  // [rows, hidden]
  int rows = 0;
  float eps = 0;
  std::span<const StateRows> sequences;
  DeltaLayer layer;
  DeltaRoom room;
  float* y = nullptr;  // [rows, hidden]
  std::span<std::byte> workspace;
};
void mix_by_delta(OpContext& context, const DeltaMixerWeights& weights, const DeltaMixerArgs& args);

}  // namespace nibble
