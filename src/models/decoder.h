// A decoder of pre-norm layers, each attention and a mixture of experts: gpt-oss, Qwen3-MoE. What differs
// between them (norms of q and k, sinks, windows, biases, router, activation, formats) its config describes.
#pragma once

#include <memory>
#include <vector>

#include "models/model.h"
#include "ops/linear/weight_matrix.h"
#include "ops/moe/moe.h"

namespace nibble {

struct DecoderLayer {
  const Bf16* attention_norm = nullptr;                                   // [hidden]
  WeightMatrix wq;                                                        // [heads * head_dim, hidden]
  WeightMatrix wk, wv;                                                    // [kv_heads * head_dim, hidden]
  WeightMatrix wo;                                                        // [hidden, heads * head_dim]
  const Bf16 *bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;  // null: without biases
  const Bf16 *q_norm = nullptr, *k_norm = nullptr;                        // [head_dim]; null: not normed
  std::vector<float> sinks;                                               // [heads]; empty: without
  int window = 0;                                                         // 0: full attention

  const Bf16* expert_norm = nullptr;  // [hidden]
  Bf16Matrix router;                  // [experts, hidden]
  const Bf16* router_bias = nullptr;  // [experts]
  MoeWeights experts;
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
Result<std::unique_ptr<Model>> bind_decoder(const ModelConfig& config,
                                            std::shared_ptr<const WeightSource> weights,
                                            const RankPart& part);

}  // namespace nibble
