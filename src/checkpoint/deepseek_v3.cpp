// DeepSeek-V3 and what has its layers: R1, V3.1, Kimi-K2, GLM-4.7-Flash. Attention is latent, the first
// layers are dense, and the others have experts in groups, chosen by sigmoids with a correction, and one that
// all tokens share. Layers behind the last, which draft tokens ahead, are left alone. Kimi-K2.5 keeps the
// text's fields in `text_config`; what it sees with is left alone.
#include <algorithm>
#include <charconv>

#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "checkpoint/decoder_fields.h"
#include "checkpoint/decoder_weights.h"
#include "checkpoint/expert_formats.h"

namespace nibble {
namespace {

constexpr std::int64_t max_groups = 64;
constexpr std::int64_t max_shared_experts = 64;
constexpr std::int64_t max_draft_layers = 64;

std::string with_value(const char* name, std::int64_t value) {
  return std::string(name) + " (" + std::to_string(value) + ")";
}

// Fields that would change the arithmetic to something that is not computed here.
Status check_variants(const ConfigFields& fields) {
  NIBBLE_RETURN_IF_ERROR(check_fixed(fields, {{"attention_bias", false}, {"rope_interleave", true}},
                                     "a model with latent attention"));
  struct Named {
    const char* name;
    const char* value;
  };
  for (const Named& named : {Named{"scoring_func", "sigmoid"}, Named{"topk_method", "noaux_tc"}}) {
    const std::optional<JsonValue> value = fields.find(named.name);
    if (value && (!value->is_string() || value->as_string() != named.value))
      return fields.must_be(named.name, quote(named.value), *value);
  }
  NIBBLE_RETURN_IF_ERROR(refuse_foreign(fields,
                                        {"attn_output_gate", "compress_ratios", "full_attention_interval",
                                         "index_head_dim", "index_n_heads", "index_topk", "swiglu_limit"},
                                        {.name = "DeepSeek-V3", .its = "its"}));
  NIBBLE_ASSIGN(const std::int64_t every, fields.integer_or("moe_layer_freq", 1, max_layers, 1));
  if (every != 1) return broken_model(with_value("moe_layer_freq", every) + " must be 1");
  return {};
}

Status read_latent(const ConfigFields& fields, ModelConfig& config) {
  LatentNumbers& latent = config.latent;
  NIBBLE_ASSIGN(config.num_attention_heads, fields.integer("num_attention_heads", 1, max_heads));
  NIBBLE_ASSIGN(const std::int64_t kv_heads,
                fields.integer_or("num_key_value_heads", 1, max_heads, config.num_attention_heads));
  if (kv_heads != config.num_attention_heads) {
    return broken_model(with_value("num_key_value_heads", kv_heads) + " must be num_attention_heads (" +
                        std::to_string(config.num_attention_heads) +
                        "): with latent attention every head has keys and values of its own");
  }
  config.num_key_value_heads = 1;
  NIBBLE_ASSIGN(latent.query_rank, fields.integer_or("q_lora_rank", 1, max_width, 0));
  NIBBLE_ASSIGN(latent.rank, fields.integer("kv_lora_rank", 1, max_width));
  NIBBLE_ASSIGN(latent.plain_dim, fields.integer("qk_nope_head_dim", 1, max_head_dim));
  NIBBLE_ASSIGN(latent.rotated_dim, fields.integer("qk_rope_head_dim", 2, max_head_dim));
  NIBBLE_ASSIGN(latent.value_dim, fields.integer("v_head_dim", 1, max_head_dim));
  if (latent.rotated_dim % 2 != 0) {
    return broken_model(with_value("qk_rope_head_dim", latent.rotated_dim) +
                        " must be even: RoPE rotates pairs");
  }
  config.head_dim = latent.plain_dim + latent.rotated_dim;
  config.rotary_dim = latent.rotated_dim;
  for (LayerDescription& layer : config.layers) layer.mixer = Mixer::latent;
  return {};
}

// mlp_layer_types, or the first so many layers.
Status read_dense_layers(const ConfigFields& fields, ModelConfig& config) {
  std::int64_t dense = 0;
  NIBBLE_ASSIGN(const bool named, read_layer_names(fields, {"mlp_layer_types", "dense", "sparse"}, config,
                                                   [&](LayerDescription& layer, bool is_dense) {
                                                     layer.feed_forward =
                                                         is_dense ? FeedForward::dense : FeedForward::experts;
                                                     dense += is_dense;
                                                   }));
  if (!named) {
    NIBBLE_ASSIGN(dense, fields.integer("first_k_dense_replace", 0, max_layers));
    for (std::int64_t layer = 0; layer < std::min(dense, config.num_hidden_layers); ++layer)
      config.layers[static_cast<std::size_t>(layer)].feed_forward = FeedForward::dense;
  }
  if (dense >= config.num_hidden_layers) {
    return broken_model("none of the " + std::to_string(config.num_hidden_layers) +
                        " layers has experts; at least one must have, which is the last where "
                        "first_k_dense_replace is below num_hidden_layers");
  }
  if (dense > 0) {
    NIBBLE_ASSIGN(config.dense_width, fields.integer("intermediate_size", 1, max_width));
  }
  return {};
}

Status read_groups(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.router_groups, fields.integer_or("n_group", 1, max_groups, 1));
  NIBBLE_ASSIGN(config.router_top_groups, fields.integer_or("topk_group", 1, max_groups, 1));
  const std::int64_t groups = config.router_groups, chosen = config.router_top_groups;
  if (config.num_local_experts % groups != 0) {
    return broken_model(with_value("n_group", groups) + " does not divide n_routed_experts (" +
                        std::to_string(config.num_local_experts) +
                        "): groups have equally many experts each");
  }
  if (chosen > groups) {
    return broken_model(with_value("topk_group", chosen) + " is above n_group (" + std::to_string(groups) +
                        "): a token cannot choose from more groups than there are");
  }
  const std::int64_t open = config.num_local_experts / groups * chosen;
  if (config.num_experts_per_tok > open) {
    return broken_model(with_value("num_experts_per_tok", config.num_experts_per_tok) + " is above the " +
                        std::to_string(open) + " experts of the " + std::to_string(chosen) +
                        " groups that topk_group leaves open");
  }
  return {};
}

Status read_experts(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.num_local_experts, fields.integer("n_routed_experts", 1, max_experts));
  NIBBLE_ASSIGN(config.num_experts_per_tok, fields.integer("num_experts_per_tok", 1, max_experts));
  NIBBLE_RETURN_IF_ERROR(check_experts(config, "num_experts_per_tok", "n_routed_experts"));
  NIBBLE_ASSIGN(config.intermediate_size, fields.integer("moe_intermediate_size", 1, max_width));
  config.router_score = RouterScore::sigmoid;
  NIBBLE_ASSIGN(config.router_renormalises, fields.boolean("norm_topk_prob"));
  NIBBLE_ASSIGN(config.router_scale, fields.positive("routed_scaling_factor"));
  config.activation = ExpertActivation::silu;
  NIBBLE_RETURN_IF_ERROR(read_groups(fields, config));
  NIBBLE_ASSIGN(const std::int64_t shared, fields.integer_or("n_shared_experts", 0, max_shared_experts, 0));
  config.shared_width = shared * config.intermediate_size;
  return check_experts_in_all(config);
}

void visit_attention(LayerWeights& weights, const ModelConfig& config) {
  const LatentNumbers& latent = config.latent;
  const std::int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  const auto matrix = [&](WeightRole role, const std::string& name, std::int64_t rows, std::int64_t cols,
                          SplitAxis split) {
    weights.matrix(role, WeightPart::attention, "self_attn." + name, rows, cols, split);
  };
  const auto norm = [&](WeightRole role, const std::string& name, std::int64_t size) {
    weights.vector(role, WeightPart::norms, "self_attn." + name, size);
  };
  if (latent.query_rank > 0) {
    matrix(WeightRole::query_down, "q_a_proj", latent.query_rank, hidden, SplitAxis::none);
    norm(WeightRole::query_down_norm, "q_a_layernorm.weight", latent.query_rank);
    matrix(WeightRole::query, "q_b_proj", heads * config.head_dim, latent.query_rank, SplitAxis::rows);
  } else {
    matrix(WeightRole::query, "q_proj", heads * config.head_dim, hidden, SplitAxis::rows);
  }
  matrix(WeightRole::latent_down, "kv_a_proj_with_mqa", latent.rank + latent.rotated_dim, hidden,
         SplitAxis::none);
  norm(WeightRole::latent_norm, "kv_a_layernorm.weight", latent.rank);
  matrix(WeightRole::latent_heads, "kv_b_proj", heads * (latent.plain_dim + latent.value_dim), latent.rank,
         SplitAxis::rows);
  matrix(WeightRole::attention_output, "o_proj", hidden, heads * latent.value_dim, SplitAxis::columns);
}

void visit_experts(LayerWeights& weights, const ModelConfig& config) {
  const std::int64_t experts = config.num_local_experts;
  weights.matrix(WeightRole::router, WeightPart::router, "mlp.gate", experts, config.hidden_size,
                 SplitAxis::none);
  weights.wide_vector(WeightRole::router_correction, WeightPart::router, "mlp.gate.e_score_correction_bias",
                      experts);
  if (config.shared_width > 0) {
    weights.mlp({WeightRole::shared_gate, WeightRole::shared_up, WeightRole::shared_down},
                WeightPart::shared_expert, "mlp.shared_experts.", config.shared_width);
  }
  weights.experts();
}

// `config` says how tensors are named.
Result<ModelConfig> read_text(const ConfigFields& fields, QuantizationScheme quantization,
                              ModelConfig config) {
  NIBBLE_RETURN_IF_ERROR(check_variants(fields));
  if (quantization.method == "mxfp4") {
    return broken_model(
        "quantization_config.quant_method \"mxfp4\" is that of gpt-oss; DeepSeek-V3 in MXFP4 is "
        "compressed-tensors' mxfp4-pack-quantized");
  }
  NIBBLE_RETURN_IF_ERROR(read_decoder(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_latent(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_latent_rope(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_dense_layers(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_experts(fields, config));
  NIBBLE_ASSIGN(config.draft_layers, fields.integer_or("num_nextn_predict_layers", 0, max_draft_layers, 0));
  config.quantization = std::move(quantization);
  NIBBLE_RETURN_IF_ERROR(check_formats(config, visit_deepseek_v3_weights));
  return config;
}

}  // namespace

Result<ModelConfig> parse_deepseek_v3_config(const ConfigFields& fields, QuantizationScheme quantization) {
  return read_text(fields, std::move(quantization), ModelConfig());
}

Result<ModelConfig> parse_kimi_k2_5_config(const ConfigFields& fields, QuantizationScheme quantization) {
  const std::optional<JsonValue> text = fields.find("text_config");
  if (!text) return fields.missing("text_config");
  if (!text->is_object()) return fields.must_be("text_config", "an object", *text);
  ModelConfig config;
  config.head = "language_model.";
  config.trunk = "language_model.model.";
  return read_text(ConfigFields(*text, "text_config"), std::move(quantization), std::move(config));
}

void visit_deepseek_v3_weights(const ModelConfig& config, const VisitWeight& visit) {
  visit_embedding(config, visit);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerWeights weights(config, layer, visit);
    weights.vector(WeightRole::mixer_norm, WeightPart::norms, "input_layernorm.weight", config.hidden_size);
    visit_attention(weights, config);
    weights.vector(WeightRole::feed_forward_norm, WeightPart::norms, "post_attention_layernorm.weight",
                   config.hidden_size);
    if (config.layers[static_cast<std::size_t>(layer)].feed_forward == FeedForward::dense) {
      weights.mlp({WeightRole::dense_gate, WeightRole::dense_up, WeightRole::dense_down},
                  WeightPart::dense_layers, "mlp.", config.dense_width);
    } else {
      visit_experts(weights, config);
    }
  }
  visit_head(config, visit);
}

std::string_view left_alone_by_deepseek_v3(const ModelConfig& config, std::string_view tensor) {
  if (tensor.ends_with(".rotary_emb.inv_freq")) return "rotary frequencies";
  const bool sees = tensor.starts_with("vision_tower.") || tensor.starts_with("mm_projector.");
  if (sees && !config.head.empty()) return "vision";
  const std::string layers = config.trunk + "layers.";
  if (!tensor.starts_with(layers)) return {};
  std::int64_t layer = -1;
  std::from_chars(tensor.data() + layers.size(), tensor.data() + tensor.size(), layer);
  const bool drafts =
      layer >= config.num_hidden_layers && layer < config.num_hidden_layers + config.draft_layers;
  return drafts ? "multi-token prediction" : std::string_view();
}

}  // namespace nibble
