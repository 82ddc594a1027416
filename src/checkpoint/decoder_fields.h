// What the config readers of decoders share: limits, and fields that most of them have.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace nibble {

// No product of these limits that sizes a tensor can overflow 63 bits.
inline constexpr std::int64_t max_width = 1 << 20;
inline constexpr std::int64_t max_layers = 1024;
inline constexpr std::int64_t max_heads = 4096;
inline constexpr std::int64_t max_head_dim = 4096;
inline constexpr std::int64_t max_vocab = 1 << 24;
inline constexpr std::int64_t max_experts = 1 << 14;
// Positions and windows are 32-bit integers.
inline constexpr std::int64_t max_positions = (std::int64_t{1} << 31) - 1;

// vocab_size, hidden_size, num_hidden_layers (with as many plain layers), max_position_embeddings,
// rms_norm_eps, tie_word_embeddings; hidden_act and dtype are checked.
Status read_decoder(const ConfigFields& fields, ModelConfig& config);
// num_attention_heads, num_key_value_heads, head_dim.
Status read_heads(const ConfigFields& fields, ModelConfig& config);
// rope_theta with rope_scaling, or rope_parameters: plain or YaRN, of whole heads.
Status read_rope(const ConfigFields& fields, ModelConfig& config);
// The same of the part of a head that partial_rotary_factor says, here or in the object. Its sections of
// several positions are those of one position in a text.
Status read_partial_rope(const ConfigFields& fields, ModelConfig& config);
// The same of latent attention's rotated key, which is whole, with DeepSeek's `mscale` and `mscale_all_dim`.
Status read_latent_rope(const ConfigFields& fields, ModelConfig& config);
// Whether a token visits at most as many experts as there are; `names` of the two fields for the message.
Status check_experts(const ModelConfig& config, const char* chosen, const char* all);

// A field that a config may have with one value alone: another would change the arithmetic to something that
// is not computed here.
struct FixedField {
  const char* name;
  bool value;
};
// `model` ends the message, as "a Qwen3-MoE".
Status check_fixed(const ConfigFields& fields, std::initializer_list<FixedField> fixed, const char* model);

// What a message calls an architecture.
struct ArchitectureWords {
  const char* name;
  const char* its;  // its or their
};
// Fields that other architectures have: a file that has one describes another forward.
Status refuse_foreign(const ConfigFields& fields, std::initializer_list<const char*> foreign,
                      const ArchitectureWords& words);
// Qwen's two ways of saying that a layer is dense.
Status check_no_layer_is_dense(const ConfigFields& fields);

// A list with one of two names for each layer.
struct LayerNames {
  const char* field;
  const char* first;
  const char* second;
};
// Tells `take` of each layer whether it has the first name. False where there is no such field.
Result<bool> read_layer_names(const ConfigFields& fields, const LayerNames& names, ModelConfig& config,
                              const std::function<void(LayerDescription&, bool is_first)>& take);

}  // namespace nibble
