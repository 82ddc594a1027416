// A layer's latent attention with the matrices around it, but for that of its output
// (ops/latent_attention/latent_attention.h).
#pragma once

#include <span>

#include "checkpoint/model_config.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/linear/weight_matrix.h"
#include "plan/forward_room.h"

namespace nibble {

struct LatentMixerWeights {
  WeightMatrix query_down;            // [query_rank, hidden]; without rows: queries come from the row itself
  const Bf16* query_norm = nullptr;   // [query_rank]
  WeightMatrix query;                 // [heads * (plain + rotated), query_rank or hidden]
  WeightMatrix latent_down;           // [rank + rotated, hidden]
  const Bf16* latent_norm = nullptr;  // [rank]
  LatentHeads heads;
  float scale = 1;  // of scores
};

float latent_score_scale(const ModelConfig& config);

struct LatentMixerArgs {
  const float* x = nullptr;  // [rows, hidden]
  int rows = 0;
  const float *cos = nullptr, *sin = nullptr;  // [rows, rotated / 2]
  std::span<const SequenceRows> sequences;
  LatentLayer cache;
  float* q = nullptr;  // [rows, heads * (plain + rotated)], room
  LatentRoom room;
  std::span<float> attention;  // room for splits on several threads
  float* out = nullptr;        // [rows, heads * value_dim]
  std::span<std::byte> workspace;
};
void mix_by_latents(OpContext& context, const LatentMixerWeights& weights, const LatentMixerArgs& args);

}  // namespace nibble
