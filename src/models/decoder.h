// A decoder of pre-norm layers, each a mixer and a mixture of experts: gpt-oss, Qwen3-MoE, Qwen3-Next,
// Qwen3.5, DeepSeek-V3. What differs between them (attention, on latents or not, or a delta rule, norms of q
// and k, gates, sinks, windows, biases, dense layers, router, activation, a shared expert, formats) its
// config describes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/delta_mixer.h"
#include "models/latent_mixer.h"
#include "models/model.h"
#include "ops/gated_mlp/gated_mlp.h"
#include "ops/linear/weight_matrix.h"
#include "ops/moe/moe.h"

namespace nibble {

struct DecoderLayer {
  const Bf16* attention_norm = nullptr;                                   // [hidden]
  WeightMatrix wq;                                                        // [heads * head_dim, hidden]; with
                                                                          // gates, twice as many rows
  WeightMatrix wk, wv;                                                    // [kv_heads * head_dim, hidden]
  WeightMatrix wo;                                                        // [hidden, heads * head_dim]
  const Bf16 *bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;  // null: without biases
  const Bf16 *q_norm = nullptr, *k_norm = nullptr;                        // [head_dim]; null: not normed
  std::vector<float> sinks;                                               // [heads]; empty: without
  int window = 0;                                                         // 0: full attention
  std::optional<DeltaMixerWeights> delta;    // instead of all that is attention's
  std::optional<LatentMixerWeights> latent;  // instead of what is attention's but wo

  const Bf16* expert_norm = nullptr;  // [hidden]
  Bf16Matrix router;                  // [experts, hidden]
  const Bf16* router_bias = nullptr;  // [experts]
  std::vector<float> correction;      // [experts], on what they are chosen by; empty: without
  MoeWeights experts;
  std::optional<GatedMlpWeights> dense;   // instead of all that is experts'
  std::optional<GatedMlpWeights> shared;  // an expert of all rows
  Bf16Matrix shared_share;                // [1, hidden]; without rows: its share is 1
};

// Pointers into the weight source's bytes, which must outlive it.
struct DecoderWeights {
  Bf16Matrix embedding;  // [vocab, hidden]
  std::vector<DecoderLayer> layers;
  const Bf16* final_norm = nullptr;  // [hidden]
  WeightMatrix lm_head;              // [vocab, hidden]; the embedding itself where they are tied
};

// Refuses a tensor that is missing or of another shape, and a shape that no kernel takes.
// Of a rank's part, the rows of that; biases and sinks point to or are its own.
Result<DecoderWeights> bind_decoder_weights(const ModelConfig& config, const WeightSource& source,
                                            const RankPart& part);
// Those that convert_dense() takes, as stays_as_stored() says (dense_conversion.h); of a rank, those of which
// it has rows.
std::vector<WeightMatrix*> convertible_matrices(DecoderWeights& weights);
Result<std::unique_ptr<Model>> bind_decoder(const ModelConfig& config,
                                            std::shared_ptr<const WeightSource> weights,
                                            const RankPart& part);

}  // namespace nibble
