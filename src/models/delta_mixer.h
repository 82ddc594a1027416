// A layer's gated delta rule with the matrices ahead of it (ops/gated_delta/gated_delta.h).
#pragma once

#include <vector>

#include "checkpoint/model_config.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/weight_matrix.h"
#include "plan/forward_room.h"

namespace nibble {

DeltaShape delta_shape(const ModelConfig& config);

struct DeltaMixerWeights {
  DeltaShape shape;  // of a rank's heads
  bool by_key_head = false;
  WeightMatrix qkv_z, b_a;         // by head of keys: [channels + values, hidden], [2 * value_heads, hidden]
  WeightMatrix z, b, a;            // or apart: [values, hidden], [value_heads, hidden]
  std::vector<WeightMatrix> qkv;   // and [channels, hidden], or of a rank the rows of its q, k and v
  WeightMatrix out;                // [hidden, values]; of a rank some rows
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
  DeltaRoom room;  // `mixed` is what heads give
  std::span<std::byte> workspace;
};
void mix_by_delta(OpContext& context, const DeltaMixerWeights& weights, const DeltaMixerArgs& args);

}  // namespace nibble
