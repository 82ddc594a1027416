#include "checkpoint/decoder_fields.h"

#include <algorithm>
#include <cmath>

#include "base/quote.h"

namespace nibble {
namespace {

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

// DeepSeek's two factors: one on cos and sin, which the other takes away again and puts on the whole score.
Status read_score_factor(const ConfigFields& rope, YarnScaling& yarn) {
  const auto read = [&](const char* name) -> Result<double> {
    const std::optional<JsonValue> value = rope.find(name);
    if (!value) return 0.0;
    if (!value->is_number() || !(value->as_double() >= 0 && value->as_double() < 1000))
      return rope.must_be(name, "a number from 0 to below 1000", *value);
    return value->as_double();
  };
  NIBBLE_ASSIGN(const double turns, read("mscale"));
  NIBBLE_ASSIGN(const double all, read("mscale_all_dim"));
  const auto factor = [&](double scale) {
    return yarn.factor <= 1 ? 1.0 : 0.1 * scale * std::log(yarn.factor) + 1.0;
  };
  if (turns > 0 && all > 0 && !rope.find("attention_factor"))
    yarn.attention_factor = factor(turns) / factor(all);
  if (all > 0) yarn.score_factor = factor(all) * factor(all);
  return {};
}

Status check_whole(const ConfigFields& fields) {
  const std::optional<JsonValue> part = fields.find("partial_rotary_factor");
  if (part && (!part->is_number() || part->as_double() != 1))
    return fields.must_be("partial_rotary_factor", "1: qk_rope_head_dim is what is rotated", *part);
  return {};
}

enum class Rotated : std::uint8_t { heads, parts_of_heads, latent_keys };

Status set_rotary_dim(double factor, ModelConfig& config) {
  const double width = std::min(factor, 2.0) * static_cast<double>(config.head_dim);
  config.rotary_dim = static_cast<std::int64_t>(width);
  if (factor <= 1 && config.rotary_dim > 0 && config.rotary_dim % 2 == 0) return {};
  return broken_model("partial_rotary_factor must leave an even part of head_dim (" +
                      std::to_string(config.head_dim) + ") to rotate, at least 2 and at most all of it");
}

// How many pairs of dimensions turn by each of three positions; in a text the three are equal.
Status check_sections(const ConfigFields& rope, const ModelConfig& config) {
  const std::optional<JsonValue> sections = rope.find("mrope_section");
  if (!sections) return {};
  const std::string what = "a list of integers that add up to " + std::to_string(config.rotary_dim / 2) +
                           ", the pairs that are rotated";
  if (!sections->is_array() || sections->size() > 8) return rope.must_be("mrope_section", what, *sections);
  std::int64_t sum = 0;
  for (const JsonValue& each : sections->elements()) {
    if (!each.is_integer() || each.as_integer() < 0 || each.as_integer() > max_head_dim)
      return rope.must_be("mrope_section", what, each);
    sum += each.as_integer();
  }
  if (sum != config.rotary_dim / 2) return rope.must_be("mrope_section", what, *sections);
  return {};
}

Status read_rope_object(const JsonValue& object, const std::string& name, Rotated rotated,
                        ModelConfig& config) {
  const ConfigFields rope(object, name);
  if (rotated == Rotated::latent_keys) {
    NIBBLE_RETURN_IF_ERROR(rope.only({"rope_type", "type", "rope_theta", "factor", "beta_fast", "beta_slow",
                                      "original_max_position_embeddings", "truncate", "attention_factor",
                                      "mscale", "mscale_all_dim", "partial_rotary_factor"}));
    NIBBLE_RETURN_IF_ERROR(check_whole(rope));
  } else if (rotated == Rotated::heads) {
    NIBBLE_RETURN_IF_ERROR(rope.only({"rope_type", "type", "rope_theta", "factor", "beta_fast", "beta_slow",
                                      "original_max_position_embeddings", "truncate", "attention_factor"}));
  } else {
    NIBBLE_RETURN_IF_ERROR(rope.only({"rope_type", "type", "rope_theta", "factor", "beta_fast", "beta_slow",
                                      "original_max_position_embeddings", "truncate", "attention_factor",
                                      "partial_rotary_factor", "mrope_section", "mrope_interleaved"}));
    if (rope.find("partial_rotary_factor")) {
      NIBBLE_ASSIGN(const double factor, rope.positive("partial_rotary_factor"));
      NIBBLE_RETURN_IF_ERROR(set_rotary_dim(factor, config));
    }
    NIBBLE_RETURN_IF_ERROR(check_sections(rope, config));
  }
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
    if (rotated == Rotated::latent_keys) NIBBLE_RETURN_IF_ERROR(read_score_factor(rope, *config.yarn));
  }
  return {};
}

Status read_any_rope(const ConfigFields& fields, Rotated rotated, ModelConfig& config) {
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
    NIBBLE_RETURN_IF_ERROR(read_rope_object(*object, name, rotated, config));
  }
  if (config.rope_theta == 0) return fields.missing("rope_theta");
  return {};
}

}  // namespace

Status read_decoder(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_RETURN_IF_ERROR(check_activation(fields));
  NIBBLE_RETURN_IF_ERROR(check_dtype(fields));
  NIBBLE_ASSIGN(config.vocab_size, fields.integer("vocab_size", 1, max_vocab));
  NIBBLE_ASSIGN(config.hidden_size, fields.integer("hidden_size", 1, max_width));
  NIBBLE_ASSIGN(config.num_hidden_layers, fields.integer("num_hidden_layers", 1, max_layers));
  config.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  NIBBLE_ASSIGN(config.max_position_embeddings, fields.integer("max_position_embeddings", 1, max_positions));
  NIBBLE_ASSIGN(config.rms_norm_eps, fields.positive("rms_norm_eps"));
  NIBBLE_ASSIGN(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  return {};
}

Status read_heads(const ConfigFields& fields, ModelConfig& config) {
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
  config.rotary_dim = config.head_dim;
  return {};
}

Status read_rope(const ConfigFields& fields, ModelConfig& config) {
  return read_any_rope(fields, Rotated::heads, config);
}

Status read_partial_rope(const ConfigFields& fields, ModelConfig& config) {
  if (fields.find("partial_rotary_factor")) {
    NIBBLE_ASSIGN(const double factor, fields.positive("partial_rotary_factor"));
    NIBBLE_RETURN_IF_ERROR(set_rotary_dim(factor, config));
  }
  return read_any_rope(fields, Rotated::parts_of_heads, config);
}

Status read_latent_rope(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_RETURN_IF_ERROR(check_whole(fields));
  return read_any_rope(fields, Rotated::latent_keys, config);
}

Status check_experts(const ModelConfig& config, const char* chosen, const char* all) {
  if (config.num_experts_per_tok <= config.num_local_experts) return {};
  return broken_model(std::string(chosen) + " (" + std::to_string(config.num_experts_per_tok) +
                      ") is above " + all + " (" + std::to_string(config.num_local_experts) +
                      "): a token cannot visit more experts than there are");
}

Status check_fixed(const ConfigFields& fields, std::initializer_list<FixedField> fixed, const char* model) {
  for (const FixedField& each : fixed) {
    NIBBLE_ASSIGN(const bool value, fields.boolean_or(each.name, each.value));
    if (value == each.value) continue;
    return broken_model(std::string(each.name) + " must be " + (each.value ? "true" : "false") + " in " +
                        model + " that nibble runs");
  }
  return {};
}

Status refuse_foreign(const ConfigFields& fields, std::initializer_list<const char*> foreign,
                      const ArchitectureWords& words) {
  for (const char* name : foreign) {
    if (const std::optional<JsonValue> value = fields.find(name)) {
      return broken_model(std::string(name) + " (" + shown(*value) + ") is no field of " + words.name +
                          " and would change " + words.its +
                          " arithmetic; remove it, or name the architecture that has it");
    }
  }
  return {};
}

Status check_no_layer_is_dense(const ConfigFields& fields) {
  NIBBLE_ASSIGN(const std::int64_t step, fields.integer_or("decoder_sparse_step", 1, max_layers, 1));
  const std::optional<JsonValue> dense = fields.find("mlp_only_layers");
  if (step != 1 || (dense && (!dense->is_array() || dense->size() != 0))) {
    return broken_model(
        "layers without experts are not supported: mlp_only_layers must be empty and decoder_sparse_step 1");
  }
  return {};
}

Result<bool> read_layer_names(const ConfigFields& fields, const LayerNames& names, ModelConfig& config,
                              const std::function<void(LayerDescription&, bool is_first)>& take) {
  const std::optional<JsonValue> listed = fields.find(names.field);
  if (!listed) return false;
  if (!listed->is_array() || static_cast<std::int64_t>(listed->size()) != config.num_hidden_layers)
    return fields.must_be(names.field, "a list of num_hidden_layers names", *listed);
  std::size_t layer = 0;
  for (const JsonValue& name : listed->elements()) {
    const bool is_first = name.is_string() && name.as_string() == names.first;
    if (!is_first && (!name.is_string() || name.as_string() != names.second)) {
      return fields.must_be(names.field, "a list of " + quote(names.first) + " and " + quote(names.second),
                            name);
    }
    take(config.layers[layer++], is_first);
  }
  return true;
}

}  // namespace nibble
