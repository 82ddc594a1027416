// gpt-oss: attention with sinks, every second layer in a window, and experts in MXFP4. config.json is read as
// transformers writes it, in its older form (rope_theta and rope_scaling) and its newer one
// (rope_parameters).
#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "checkpoint/decoder_fields.h"
#include "checkpoint/decoder_weights.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

Status check_quantization(const QuantizationScheme& quantization) {
  if (quantization.method.empty()) {
    return broken_model(
        "quantization_config is missing: experts must be stored as MXFP4 (quant_method \"mxfp4\")");
  }
  return {};
}

Status read_layer_types(const ConfigFields& fields, ModelConfig& config) {
  const std::optional<JsonValue> types = fields.find("layer_types");
  std::vector<bool> sliding;
  if (!types) {
    // transformers' own reading: sliding first, then every second layer.
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) sliding.push_back(layer % 2 == 0);
  } else {
    if (!types->is_array()) return fields.must_be("layer_types", "a list", *types);
    if (static_cast<std::int64_t>(types->size()) != config.num_hidden_layers) {
      return broken_model("layer_types lists " + std::to_string(types->size()) +
                          " layers, but num_hidden_layers is " + std::to_string(config.num_hidden_layers));
    }
    for (const JsonValue& type : types->elements()) {
      const bool slides = type.is_string() && type.as_string() == "sliding_attention";
      const bool full = type.is_string() && type.as_string() == "full_attention";
      if (!slides && !full) {
        return fields.must_be("layer_types", "a list of \"sliding_attention\" and \"full_attention\"", type);
      }
      sliding.push_back(slides);
    }
  }
  for (std::size_t layer = 0; layer < sliding.size(); ++layer) {
    if (!sliding[layer]) continue;
    NIBBLE_ASSIGN(config.sliding_window, fields.integer("sliding_window", 1, max_positions));
    config.layers[layer].window = config.sliding_window;
  }
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
  NIBBLE_RETURN_IF_ERROR(check_experts(config, name, "num_local_experts"));
  NIBBLE_ASSIGN(config.intermediate_size, fields.integer("intermediate_size", 1, max_width));
  config.activation = ExpertActivation::clamped_swiglu;
  NIBBLE_ASSIGN(config.swiglu_limit, fields.positive_or("swiglu_limit", 7.0));
  return {};
}

Status check_blocks(std::string_view name, std::int64_t width) {
  if (width % mxfp4_block == 0) return {};
  return broken_model(std::string(name) + " (" + std::to_string(width) +
                      ") must be a multiple of 32, the block of MXFP4");
}

// Every expert's matrix [rows, cols] in one tensor, with a bias.
void visit_experts(WeightRole role, WeightRole bias, const std::string& name, std::int64_t layer,
                   const Shape& shape, SplitAxis split, const VisitWeight& visit) {
  Weight weight{.role = role,
                .part = WeightPart::experts,
                .layer = layer,
                .name = name,
                .shape = shape,
                .format = TensorFormat::mxfp4_blocks,
                .use = TensorUse::experts,
                .split = split,
                .by_expert = true};
  visit(weight);
  weight.role = bias;
  weight.name += "_bias";
  weight.shape = {shape[0], shape[1]};
  weight.format = TensorFormat::bf16;
  weight.split = split == SplitAxis::rows ? split : SplitAxis::none;
  weight.is_list = true;
  visit(weight);
}

}  // namespace

Result<ModelConfig> parse_gpt_oss_config(const ConfigFields& fields, QuantizationScheme quantization) {
  NIBBLE_RETURN_IF_ERROR(check_quantization(quantization));
  ModelConfig config;
  NIBBLE_RETURN_IF_ERROR(read_decoder(fields, config));
  NIBBLE_RETURN_IF_ERROR(check_blocks("hidden_size", config.hidden_size));
  NIBBLE_RETURN_IF_ERROR(read_heads(fields, config));
  NIBBLE_ASSIGN(config.attention_bias, fields.boolean_or("attention_bias", true));
  config.attention_sinks = true;
  NIBBLE_RETURN_IF_ERROR(read_layer_types(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_rope(fields, config));
  NIBBLE_RETURN_IF_ERROR(read_experts(fields, config));
  NIBBLE_RETURN_IF_ERROR(check_blocks("intermediate_size", config.intermediate_size));
  config.quantization = std::move(quantization);
  return config;
}

void visit_gpt_oss_weights(const ModelConfig& config, const VisitWeight& visit) {
  const std::int64_t hidden = config.hidden_size, experts = config.num_local_experts,
                     width = config.intermediate_size;
  visit_embedding(config, visit);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerWeights weights(config, layer, visit);
    weights.vector(WeightRole::mixer_norm, WeightPart::norms, "input_layernorm.weight", hidden);
    weights.attention();
    weights.vector(WeightRole::feed_forward_norm, WeightPart::norms, "post_attention_layernorm.weight",
                   hidden);
    weights.matrix(WeightRole::router, WeightPart::router, "mlp.router", experts, hidden, SplitAxis::none);
    weights.vector(WeightRole::router_bias, WeightPart::router, "mlp.router.bias", experts);
    const std::string prefix = weights.prefix() + "mlp.experts.";
    visit_experts(WeightRole::expert_gate_up, WeightRole::expert_gate_up_bias, prefix + "gate_up_proj", layer,
                  {experts, 2 * width, hidden}, SplitAxis::rows, visit);
    visit_experts(WeightRole::expert_down, WeightRole::expert_down_bias, prefix + "down_proj", layer,
                  {experts, hidden, width}, SplitAxis::columns, visit);
  }
  visit_head(config, visit);
}

}  // namespace nibble
