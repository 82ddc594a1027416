// gpt-oss: config.json as transformers writes it, in its older form (rope_theta and rope_scaling) and its
// newer one (rope_parameters).
#include <cmath>

#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

// No product of these limits that sizes a tensor can overflow 63 bits.
constexpr std::int64_t max_width = 1 << 20;
constexpr std::int64_t max_layers = 1024;
constexpr std::int64_t max_heads = 4096;
constexpr std::int64_t max_head_dim = 4096;
constexpr std::int64_t max_vocab = 1 << 24;
constexpr std::int64_t max_experts = 1 << 14;
// Positions and windows are 32-bit integers.
constexpr std::int64_t max_positions = (std::int64_t{1} << 31) - 1;

Status check_activation(const ConfigFields& fields) {
  const std::optional<JsonValue> activation = fields.find("hidden_act");
  if (activation && (!activation->is_string() || activation->as_string() != "silu")) {
    return fields.must_be("hidden_act", "\"silu\"", *activation);
  }
  return {};
}

// ModelConfig::dtype has the one value that is taken; a file that names none was made with it too.
Status check_dtype(const ConfigFields& fields) {
  for (const char* name : {"dtype", "torch_dtype"}) {
    const std::optional<JsonValue> dtype = fields.find(name);
    if (dtype && (!dtype->is_string() || dtype->as_string() != "bfloat16")) {
      return fields.must_be(name, "\"bfloat16\"", *dtype);
    }
  }
  return {};
}

Status check_quantization(const ConfigFields& fields) {
  const std::optional<JsonValue> quantization = fields.find("quantization_config");
  if (!quantization) {
    return broken_model(
        "quantization_config is missing: experts must be stored as MXFP4 (quant_method \"mxfp4\")");
  }
  if (!quantization->is_object()) return fields.must_be("quantization_config", "an object", *quantization);
  const ConfigFields inner(*quantization, "quantization_config");
  NIBBLE_ASSIGN(const std::string method, inner.string("quant_method"));
  if (method != "mxfp4") {
    return broken_model("quantization_config.quant_method must be \"mxfp4\", not " + quote(method));
  }
  return {};
}

Status read_attention(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.num_attention_heads, fields.integer("num_attention_heads", 1, max_heads));
  NIBBLE_ASSIGN(config.num_key_value_heads, fields.integer("num_key_value_heads", 1, max_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return broken_model("num_attention_heads (" + std::to_string(config.num_attention_heads) +
                        ") must be a multiple of num_key_value_heads (" +
                        std::to_string(config.num_key_value_heads) + ")");
  }
  NIBBLE_ASSIGN(config.head_dim, fields.integer("head_dim", 2, max_head_dim));
  if (config.head_dim % 2 != 0) {
    return broken_model("head_dim (" + std::to_string(config.head_dim) +
                        ") must be even: RoPE rotates pairs");
  }
  NIBBLE_ASSIGN(config.attention_bias, fields.boolean_or("attention_bias", true));
  return {};
}

Status read_layer_types(const ConfigFields& fields, ModelConfig& config) {
  const std::optional<JsonValue> types = fields.find("layer_types");
  if (!types) {
    // transformers' own reading: sliding first, then every second layer.
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      config.layer_types.push_back(layer % 2 == 0 ? LayerType::sliding_attention : LayerType::full_attention);
    }
  } else {
    if (!types->is_array()) return fields.must_be("layer_types", "a list", *types);
    if (static_cast<std::int64_t>(types->size()) != config.num_hidden_layers) {
      return broken_model("layer_types lists " + std::to_string(types->size()) +
                          " layers, but num_hidden_layers is " + std::to_string(config.num_hidden_layers));
    }
    for (const JsonValue& type : types->elements()) {
      const bool sliding = type.is_string() && type.as_string() == "sliding_attention";
      const bool full = type.is_string() && type.as_string() == "full_attention";
      if (!sliding && !full) {
        return fields.must_be("layer_types", "a list of \"sliding_attention\" and \"full_attention\"", type);
      }
      config.layer_types.push_back(sliding ? LayerType::sliding_attention : LayerType::full_attention);
    }
  }
  for (const LayerType type : config.layer_types) {
    if (type != LayerType::sliding_attention) continue;
    NIBBLE_ASSIGN(config.sliding_window, fields.integer("sliding_window", 1, max_positions));
    break;
  }
  return {};
}

Result<YarnScaling> read_yarn(const ConfigFields& rope) {
  YarnScaling yarn;
  NIBBLE_ASSIGN(yarn.factor, rope.positive("factor"));
  NIBBLE_ASSIGN(yarn.beta_fast, rope.positive_or("beta_fast", 32));
  NIBBLE_ASSIGN(yarn.beta_slow, rope.positive_or("beta_slow", 1));
  NIBBLE_ASSIGN(yarn.original_max_position_embeddings,
                rope.integer("original_max_position_embeddings", 1, max_positions));
  NIBBLE_ASSIGN(yarn.truncate, rope.boolean_or("truncate", true));
  const double usual = yarn.factor <= 1 ? 1.0 : 0.1 * std::log(yarn.factor) + 1.0;
  NIBBLE_ASSIGN(yarn.attention_factor, rope.positive_or("attention_factor", usual));
  if (yarn.beta_fast < yarn.beta_slow) return broken_model("beta_fast of RoPE scaling is below beta_slow");
  return yarn;
}

Status read_rope_object(const JsonValue& object, const std::string& name, ModelConfig& config) {
  const ConfigFields rope(object, name);
  NIBBLE_RETURN_IF_ERROR(rope.only({"rope_type", "type", "rope_theta", "factor", "beta_fast", "beta_slow",
                                    "original_max_position_embeddings", "truncate", "attention_factor"}));
  NIBBLE_ASSIGN(const std::string type,
                rope.string(rope.find("type") && !rope.find("rope_type") ? "type" : "rope_type"));
  if (type != "yarn" && type != "default") {
    return broken_model(name + ".rope_type must be \"yarn\" or \"default\", not " + quote(type));
  }
  if (rope.find("rope_theta")) {
    NIBBLE_ASSIGN(const double theta, rope.positive("rope_theta"));
    if (config.rope_theta != 0 && config.rope_theta != theta) {
      return broken_model("rope_theta and " + name + ".rope_theta contradict each other");
    }
    config.rope_theta = theta;
  }
  if (type == "yarn") {
    NIBBLE_ASSIGN(config.yarn, read_yarn(rope));
  }
  return {};
}

Status read_rope(const ConfigFields& fields, ModelConfig& config) {
  if (fields.find("rope_theta")) {
    NIBBLE_ASSIGN(config.rope_theta, fields.positive("rope_theta"));
  }
  const std::optional<JsonValue> older = fields.find("rope_scaling");
  const std::optional<JsonValue> newer = fields.find("rope_parameters");
  if (older && newer) return broken_model("rope_scaling and rope_parameters are both given; keep one");
  const std::string name = older ? "rope_scaling" : "rope_parameters";
  const std::optional<JsonValue> object = older ? older : newer;
  if (object) {
    if (!object->is_object()) return fields.must_be(name, "an object", *object);
    NIBBLE_RETURN_IF_ERROR(read_rope_object(*object, name, config));
  }
  if (config.rope_theta == 0) return fields.missing("rope_theta");
  return {};
}

Status read_experts(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.num_local_experts, fields.integer("num_local_experts", 1, max_experts));
  // Two names for one number; files carry either or both.
  const char* name = fields.find("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  if (!fields.find(name)) return fields.missing("num_experts_per_tok");
  NIBBLE_ASSIGN(config.num_experts_per_tok, fields.integer(name, 1, max_experts));
  NIBBLE_ASSIGN(const std::int64_t other,
                fields.integer_or("experts_per_token", 1, max_experts, config.num_experts_per_tok));
  if (other != config.num_experts_per_tok) {
    return broken_model("num_experts_per_tok (" + std::to_string(config.num_experts_per_tok) +
                        ") and experts_per_token (" + std::to_string(other) + ") contradict each other");
  }
  if (config.num_experts_per_tok > config.num_local_experts) {
    return broken_model(std::string(name) + " (" + std::to_string(config.num_experts_per_tok) +
                        ") is above num_local_experts (" + std::to_string(config.num_local_experts) +
                        "): a token cannot visit more experts than there are");
  }
  NIBBLE_ASSIGN(config.intermediate_size, fields.integer("intermediate_size", 1, max_width));
  NIBBLE_ASSIGN(config.swiglu_limit, fields.positive_or("swiglu_limit", 7.0));
  return {};
}

Status check_blocks(std::string_view name, std::int64_t width) {
  if (width % mxfp4_block == 0) return {};
  return broken_model(std::string(name) + " (" + std::to_string(width) +
                      ") must be a multiple of 32, the block of MXFP4");
}

}  // namespace

Result<ModelConfig> parse_gpt_oss_config(const ConfigFields& fields) {
  NIBBLE_RETURN_IF_ERROR(check_activation(fields));
  NIBBLE_RETURN_IF_ERROR(check_dtype(fields));
  NIBBLE_RETURN_IF_ERROR(check_quantization(fields));
  ModelConfig config;
  NIBBLE_ASSIGN(config.vocab_size, fields.integer("vocab_size", 1, max_vocab));
  NIBBLE_ASSIGN(config.hidden_size, fields.integer("hidden_size", 1, max_width));
  NIBBLE_RETURN_IF_ERROR(check_blocks("hidden_size", config.hidden_size));
  NIBBLE_ASSIGN(config.num_hidden_layers, fields.integer("num_hidden_layers", 1, max_layers));
  NIBBLE_ASSIGN(config.max_position_embeddings, fields.integer("max_position_embeddings", 1, max_positions));
  NIBBLE_ASSIGN(config.rms_norm_eps, fields.positive("rms_norm_eps"));
  NIBBLE_ASSIGN(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  NIBBLE_RETURN_IF_ERROR(read_attention(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_layer_types(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_rope(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_experts(fields, config));
  NIBBLE_RETURN_IF_ERROR(check_blocks("intermediate_size", config.intermediate_size));
  return config;
}

}  // namespace nibble
