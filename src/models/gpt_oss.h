// gpt-oss: a decoder of pre-norm layers, attention with sinks (every second layer in a sliding window) and
// an MXFP4 mixture of experts.
#pragma once

#include <memory>
#include <vector>

#include "models/model.h"
#include "ops/linear/dot_kernels.h"
#include "ops/moe/moe.h"
#include "ops/rope/rope.h"

namespace nibble {

struct GptOssLayer {
  const Bf16* attention_norm = nullptr;                                   // [hidden]
  DenseMatrix wq;                                                         // [heads * head_dim, hidden]
  DenseMatrix wk, wv;                                                     // [kv_heads * head_dim, hidden]
  DenseMatrix wo;                                                         // [hidden, heads * head_dim]
  const Bf16 *bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;  // null: without biases
  std::vector<float> sinks;                                               // [heads]
  int window = 0;                                                         // 0: full attention

  const Bf16* expert_norm = nullptr;  // [hidden]
  Bf16Matrix router;                  // [experts, hidden]
  const Bf16* router_bias = nullptr;  // [experts]
  MoeMxfp4Weights experts;
};

// Pointers into the weight source's bytes, which must outlive it.
struct GptOssWeights {
  Bf16Matrix embedding;  // [vocab, hidden]
  std::vector<GptOssLayer> layers;
  const Bf16* final_norm = nullptr;  // [hidden]
  DenseMatrix lm_head;               // [vocab, hidden]; the embedding itself where they are tied
};

RopeFrequencies gpt_oss_rope(const ModelConfig& config);

Result<GptOssWeights> bind_gpt_oss_weights(const ModelConfig& config, const WeightSource& source);
Result<std::unique_ptr<Model>> bind_gpt_oss(const ModelConfig& config, WeightSource weights);

}  // namespace nibble
