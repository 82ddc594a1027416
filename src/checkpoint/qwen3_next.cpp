// Qwen3-Next and the models of Qwen3.5 and 3.6, with experts or dense, of which the text is read. Three of
// four layers have a gated delta rule instead of attention. Attention has a gate on its output and rotates a
// part of each head. Norms are zero-centred. An expert is shared by all tokens. The newer models keep the
// text's fields in `text_config`, and have the projections of the delta rule apart.
#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "checkpoint/decoder_fields.h"
#include "checkpoint/decoder_weights.h"
#include "checkpoint/expert_formats.h"

namespace nibble {
namespace {

constexpr std::int64_t max_taps = 32;

// Fields that would change the arithmetic to something that is not computed here.
Status check_variants(const ConfigFields& fields) {
  NIBBLE_RETURN_IF_ERROR(check_fixed(fields,
                                     {{"attention_bias", false},
                                      {"attn_output_gate", true},
                                      {"use_sliding_window", false},
                                      {"qkv_bias", false}},
                                     "a Qwen3-Next or Qwen3.5"));
  NIBBLE_RETURN_IF_ERROR(
      refuse_foreign(fields,
                     {"first_k_dense_replace", "kv_lora_rank", "n_group", "n_shared_experts",
                      "routed_scaling_factor", "scoring_func", "swiglu_limit", "topk_method"},
                     {.name = "Qwen3-Next or Qwen3.5", .its = "their"}));
  const std::optional<JsonValue> state = fields.find("mamba_ssm_dtype");
  if (state && (!state->is_string() || state->as_string() != "float32"))
    return fields.must_be("mamba_ssm_dtype", "\"float32\"", *state);
  return check_no_layer_is_dense(fields);
}

// layer_types, or every so many layers one of attention.
Status read_mixers(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(const bool named,
                read_layer_names(fields, {"layer_types", "linear_attention", "full_attention"}, config,
                                 [](LayerDescription& layer, bool is_linear) {
                                   layer.mixer = is_linear ? Mixer::gated_delta : Mixer::attention;
                                 }));
  std::int64_t layer = 0, with_attention = 0;
  if (!named) {
    NIBBLE_ASSIGN(const std::int64_t interval,
                  fields.integer_or("full_attention_interval", 1, max_layers, 4));
    for (LayerDescription& each : config.layers)
      each.mixer = ++layer % interval == 0 ? Mixer::attention : Mixer::gated_delta;
  }
  for (const LayerDescription& each : config.layers) with_attention += each.mixer == Mixer::attention;
  if (with_attention > 0) return {};
  return broken_model("none of the " + std::to_string(config.num_hidden_layers) +
                      " layers has attention; at least one must be \"full_attention\"");
}

Status read_delta(const ConfigFields& fields, DeltaNumbers& delta) {
  NIBBLE_ASSIGN(delta.key_heads, fields.integer("linear_num_key_heads", 1, max_heads));
  NIBBLE_ASSIGN(delta.value_heads, fields.integer("linear_num_value_heads", 1, max_heads));
  NIBBLE_ASSIGN(delta.key_dim, fields.integer("linear_key_head_dim", 1, max_head_dim));
  NIBBLE_ASSIGN(delta.value_dim, fields.integer("linear_value_head_dim", 1, max_head_dim));
  NIBBLE_ASSIGN(delta.taps, fields.integer("linear_conv_kernel_dim", 1, max_taps));
  if (delta.value_heads % delta.key_heads != 0) {
    return broken_model("linear_num_value_heads (" + std::to_string(delta.value_heads) +
                        ") must be a multiple of linear_num_key_heads (" + std::to_string(delta.key_heads) +
                        ")");
  }
  return {};
}

Status read_experts(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.num_local_experts, fields.integer("num_experts", 1, max_experts));
  NIBBLE_ASSIGN(config.num_experts_per_tok, fields.integer("num_experts_per_tok", 1, max_experts));
  NIBBLE_RETURN_IF_ERROR(check_experts(config, "num_experts_per_tok", "num_experts"));
  NIBBLE_ASSIGN(config.intermediate_size, fields.integer("moe_intermediate_size", 1, max_width));
  NIBBLE_ASSIGN(config.shared_width, fields.integer("shared_expert_intermediate_size", 1, max_width));
  config.shared_expert_gate = true;
  config.router_score = RouterScore::softmax_of_all;
  config.activation = ExpertActivation::silu;
  return check_experts_in_all(config);
}

// No layer has experts: a feed-forward of one width.
Status read_dense(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_RETURN_IF_ERROR(refuse_foreign(
      fields,
      {"moe_intermediate_size", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size"},
      {.name = "a dense Qwen3.5", .its = "its"}));
  NIBBLE_ASSIGN(config.dense_width, fields.integer("intermediate_size", 1, max_width));
  config.activation = ExpertActivation::silu;
  for (LayerDescription& layer : config.layers) layer.feed_forward = FeedForward::dense;
  return {};
}

Result<ModelConfig> read_text(const ConfigFields& fields, QuantizationScheme quantization, FeedForward kind,
                              ModelConfig config) {
  NIBBLE_RETURN_IF_ERROR(check_variants(fields));
  if (quantization.method == "mxfp4") {
    return broken_model(
        "quantization_config.quant_method \"mxfp4\" is that of gpt-oss; Qwen3-Next and Qwen3.5 in MXFP4 are "
        "compressed-tensors' mxfp4-pack-quantized");
  }
  NIBBLE_RETURN_IF_ERROR(read_decoder(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_mixers(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_heads(fields, config));
  config.query_key_norm = config.attention_output_gate = config.zero_centred_norms = true;
  NIBBLE_RETURN_IF_ERROR(read_partial_rope(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_delta(fields, config.delta));
  NIBBLE_RETURN_IF_ERROR(kind == FeedForward::dense ? read_dense(fields, config)
                                                    : read_experts(fields, config));
  config.quantization = std::move(quantization);
  NIBBLE_RETURN_IF_ERROR(check_formats(config, visit_qwen3_next_weights));
  return config;
}

// The two levels may both say whether lm_head is the embedding.
Status read_tied(const ConfigFields& outer, const ConfigFields& inner, ModelConfig& config) {
  NIBBLE_ASSIGN(const bool tied, outer.boolean_or("tie_word_embeddings", config.tie_word_embeddings));
  const bool agree = tied == config.tie_word_embeddings || !inner.find("tie_word_embeddings");
  config.tie_word_embeddings = tied;
  if (agree) return {};
  return broken_model("tie_word_embeddings and text_config.tie_word_embeddings contradict each other");
}

void visit_delta(LayerWeights& weights, const ModelConfig& config) {
  const DeltaNumbers& delta = config.delta;
  const std::int64_t hidden = config.hidden_size, keys = delta.key_heads * delta.key_dim,
                     values = delta.value_heads * delta.value_dim, channels = 2 * keys + values;
  const auto rows = [&](WeightRole role, const std::string& name, std::int64_t count) {
    weights.matrix(role, WeightPart::linear_attention, "linear_attn." + name, count, hidden, SplitAxis::rows);
  };
  if (delta.by_key_head) {
    rows(WeightRole::delta_qkv_z, "in_proj_qkvz", channels + values);
    rows(WeightRole::delta_b_a, "in_proj_ba", 2 * delta.value_heads);
  } else {
    rows(WeightRole::delta_qkv, "in_proj_qkv", channels);
    rows(WeightRole::delta_z, "in_proj_z", values);
    rows(WeightRole::delta_b, "in_proj_b", delta.value_heads);
    rows(WeightRole::delta_a, "in_proj_a", delta.value_heads);
  }
  weights.filters(WeightRole::delta_convolution, "linear_attn.conv1d.weight", channels, delta.taps);
  const auto vector = [&](WeightRole role, const std::string& name, std::int64_t size) {
    weights.wide_vector(role, WeightPart::linear_attention, "linear_attn." + name, size);
  };
  vector(WeightRole::delta_bias, "dt_bias", delta.value_heads);
  vector(WeightRole::delta_log_rate, "A_log", delta.value_heads);
  vector(WeightRole::delta_norm, "norm.weight", delta.value_dim);
  weights.matrix(WeightRole::delta_output, WeightPart::linear_attention, "linear_attn.out_proj", hidden,
                 values, SplitAxis::columns);
}

void visit_experts(LayerWeights& weights, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, width = config.intermediate_size;
  if (config.stacked_experts) {
    weights.stacked_experts(WeightRole::expert_gates_ups, "mlp.experts.gate_up_proj", 2 * width, hidden,
                            SplitAxis::rows);
    weights.stacked_experts(WeightRole::expert_down, "mlp.experts.down_proj", hidden, width,
                            SplitAxis::columns);
    return;
  }
  weights.experts();
}

}  // namespace

Result<ModelConfig> parse_qwen3_next_config(const ConfigFields& fields, QuantizationScheme quantization) {
  ModelConfig config;
  config.delta.by_key_head = true;
  NIBBLE_ASSIGN(config.router_renormalises, fields.boolean_or("norm_topk_prob", true));
  return read_text(fields, std::move(quantization), FeedForward::experts, std::move(config));
}

namespace {

// Both levels of a Qwen3.5's config, or its one.
Result<ModelConfig> read_levels(const ConfigFields& fields, QuantizationScheme quantization, FeedForward kind,
                                ModelConfig config) {
  const std::optional<JsonValue> text = fields.find("text_config");
  if (text && !text->is_object()) return fields.must_be("text_config", "an object", *text);
  const ConfigFields inner = text ? ConfigFields(*text, "text_config") : fields;
  NIBBLE_ASSIGN(const bool renormalises, inner.boolean_or("norm_topk_prob", true));
  if (!renormalises) return broken_model("norm_topk_prob must be true: Qwen3.5 always renormalises");
  if (text) config.trunk = "model.language_model.";
  NIBBLE_ASSIGN(config, read_text(inner, std::move(quantization), kind, std::move(config)));
  if (text) NIBBLE_RETURN_IF_ERROR(read_tied(fields, inner, config));
  return config;
}

}  // namespace

Result<ModelConfig> parse_qwen3_5_moe_config(const ConfigFields& fields, QuantizationScheme quantization) {
  ModelConfig config;
  config.router_renormalises = true;
  // Unquantized ones come stacked; what lies in the files has the last word.
  config.stacked_experts = quantization.method.empty();
  return read_levels(fields, std::move(quantization), FeedForward::experts, std::move(config));
}

Result<ModelConfig> parse_qwen3_5_config(const ConfigFields& fields, QuantizationScheme quantization) {
  return read_levels(fields, std::move(quantization), FeedForward::dense, ModelConfig());
}

void visit_qwen3_next_weights(const ModelConfig& config, const VisitWeight& visit) {
  const std::int64_t hidden = config.hidden_size;
  visit_embedding(config, visit);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerWeights weights(config, layer, visit);
    weights.vector(WeightRole::mixer_norm, WeightPart::norms, "input_layernorm.weight", hidden);
    if (config.layers[static_cast<std::size_t>(layer)].mixer == Mixer::gated_delta) {
      visit_delta(weights, config);
    } else {
      weights.attention();
    }
    weights.vector(WeightRole::feed_forward_norm, WeightPart::norms, "post_attention_layernorm.weight",
                   hidden);
    if (config.dense_width > 0) {
      weights.mlp({WeightRole::dense_gate, WeightRole::dense_up, WeightRole::dense_down},
                  WeightPart::dense_layers, "mlp.", config.dense_width);
      continue;
    }
    weights.matrix(WeightRole::router, WeightPart::router, "mlp.gate", config.num_local_experts, hidden,
                   SplitAxis::none);
    visit_experts(weights, config);
    weights.mlp({WeightRole::shared_gate, WeightRole::shared_up, WeightRole::shared_down},
                WeightPart::shared_expert, "mlp.shared_expert.", config.shared_width);
    weights.matrix(WeightRole::shared_share, WeightPart::shared_expert, "mlp.shared_expert_gate", 1, hidden,
                   SplitAxis::none);
  }
  visit_head(config, visit);
}

std::string_view left_alone_by_qwen3_next(const ModelConfig&, std::string_view tensor) {
  if (tensor.starts_with("mtp.")) return "multi-token prediction";
  if (tensor.starts_with("model.visual.") || tensor.starts_with("visual.")) return "vision";
  return {};
}

}  // namespace nibble
