// Qwen3-MoE: attention whose q and k are normed by head, without biases, and experts of which each has its
// gate, up and down for itself. Weights come in bf16, FP8 blocks or 4 bits.
#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "checkpoint/decoder_fields.h"
#include "checkpoint/decoder_weights.h"
#include "checkpoint/expert_formats.h"

namespace nibble {
namespace {

// Fields that would change the arithmetic to something that is not computed here.
Status check_variants(const ConfigFields& fields) {
  NIBBLE_RETURN_IF_ERROR(check_fixed(
      fields,
      {{"attention_bias", false}, {"use_sliding_window", false}, {"qkv_bias", false}, {"use_qk_norm", true}},
      "a Qwen3-MoE"));
  NIBBLE_RETURN_IF_ERROR(
      refuse_foreign(fields,
                     {"attn_output_gate", "first_k_dense_replace", "full_attention_interval", "kv_lora_rank",
                      "n_group", "n_shared_experts", "partial_rotary_factor", "routed_scaling_factor",
                      "scoring_func", "swiglu_limit", "topk_method"},
                     {.name = "Qwen3-MoE", .its = "its"}));
  NIBBLE_ASSIGN(const std::int64_t shared,
                fields.integer_or("shared_expert_intermediate_size", 0, max_width, 0));
  if (shared != 0)
    return broken_model("shared_expert_intermediate_size must be 0: Qwen3-MoE has no shared expert");
  return check_no_layer_is_dense(fields);
}

Status check_layer_types(const ConfigFields& fields, const ModelConfig& config) {
  const std::optional<JsonValue> types = fields.find("layer_types");
  if (!types) return {};
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != config.num_hidden_layers)
    return fields.must_be("layer_types", "a list of num_hidden_layers names", *types);
  for (const JsonValue& type : types->elements()) {
    if (!type.is_string() || type.as_string() != "full_attention")
      return fields.must_be("layer_types", "a list of \"full_attention\"", type);
  }
  return {};
}

Status read_experts(const ConfigFields& fields, ModelConfig& config) {
  NIBBLE_ASSIGN(config.num_local_experts, fields.integer("num_experts", 1, max_experts));
  NIBBLE_ASSIGN(config.num_experts_per_tok, fields.integer("num_experts_per_tok", 1, max_experts));
  NIBBLE_RETURN_IF_ERROR(check_experts(config, "num_experts_per_tok", "num_experts"));
  NIBBLE_ASSIGN(config.intermediate_size, fields.integer("moe_intermediate_size", 1, max_width));
  config.router_score = RouterScore::softmax_of_all;
  NIBBLE_ASSIGN(config.router_renormalises, fields.boolean("norm_topk_prob"));
  config.activation = ExpertActivation::silu;
  return check_experts_in_all(config);
}

}  // namespace

Result<ModelConfig> parse_qwen3_moe_config(const ConfigFields& fields, QuantizationScheme quantization) {
  NIBBLE_RETURN_IF_ERROR(check_variants(fields));
  if (quantization.method == "mxfp4") {
    return broken_model(
        "quantization_config.quant_method \"mxfp4\" is that of gpt-oss, which has all experts of a layer in "
        "one tensor; Qwen3-MoE in MXFP4 is compressed-tensors' mxfp4-pack-quantized");
  }
  ModelConfig config;
  NIBBLE_RETURN_IF_ERROR(read_decoder(fields, config));
  NIBBLE_RETURN_IF_ERROR(check_layer_types(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_heads(fields, config));
  config.query_key_norm = true;
  NIBBLE_RETURN_IF_ERROR(read_rope(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_experts(fields, config));
  config.quantization = std::move(quantization);
  NIBBLE_RETURN_IF_ERROR(check_formats(config, visit_qwen3_moe_weights));
  return config;
}

void visit_qwen3_moe_weights(const ModelConfig& config, const VisitWeight& visit) {
  const std::int64_t hidden = config.hidden_size;
  visit_embedding(config, visit);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerWeights weights(config, layer, visit);
    weights.vector(WeightRole::mixer_norm, WeightPart::norms, "input_layernorm.weight", hidden);
    weights.attention();
    weights.vector(WeightRole::feed_forward_norm, WeightPart::norms, "post_attention_layernorm.weight",
                   hidden);
    weights.matrix(WeightRole::router, WeightPart::router, "mlp.gate", config.num_local_experts, hidden,
                   SplitAxis::none);
    weights.experts();
  }
  visit_head(config, visit);
}

}  // namespace nibble
