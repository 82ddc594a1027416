// What a model's config.json says of its shape and arithmetic, read strictly into plain numbers: a field
// that is missing, contradictory, absurd, or that would change the arithmetic in a way nibble does not
// compute is refused by name. Nothing is guessed.
//
// To add an architecture: one parse function in <architecture>_config.cpp and its line in the list of
// model_config.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "tensor/dtype.h"

namespace nibble {

enum class LayerType : std::uint8_t { full_attention, sliding_attention };
std::string_view layer_type_name(LayerType type);

struct YarnScaling {
  double factor = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  std::int64_t original_max_position_embeddings = 0;
  bool truncate = true;         // whether the ramp's bounds are rounded to whole dimensions
  double attention_factor = 1;  // on cos and sin of q and k alike; 0.1 ln(factor) + 1 where not given
};

struct ModelConfig {
  std::string architecture;  // "GptOssForCausalLM"
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // the embedding is lm_head as well
  DType dtype = DType::bf16;         // what the model was made to compute with

  // Attention
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // divides num_attention_heads
  std::int64_t head_dim = 0;             // even
  bool attention_bias = false;           // on q, k, v and o
  std::vector<LayerType> layer_types;    // [num_hidden_layers]
  std::int64_t sliding_window = 0;  // keys a query of a sliding layer sees, itself included; 0: no such layer
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;  // absent: plain RoPE

  // Experts
  std::int64_t num_local_experts = 0;
  std::int64_t num_experts_per_tok = 0;  // at most num_local_experts
  std::int64_t intermediate_size = 0;    // of one expert
  double swiglu_limit = 0;

  // Ids that end an answer: config.json's and generation_config.json's together, ascending.
  std::vector<TokenId> eos_token_ids;
};

// Reads config.json and, where there is one, generation_config.json of a model's folder.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

// The same from the files' text; generation_config is empty where there is no such file.
Result<ModelConfig> parse_model_config(std::string config, std::string generation_config = {});

}  // namespace nibble
