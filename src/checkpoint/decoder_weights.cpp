#include "checkpoint/decoder_weights.h"

namespace nibble {
namespace {

// Matrices that decide where tokens go, or are of a few rows, stay as they are in all checkpoints.
bool quantizes_role(WeightRole role) {
  switch (role) {
    case WeightRole::router:
    case WeightRole::shared_share:
    case WeightRole::delta_b_a:
    case WeightRole::delta_b:
    case WeightRole::delta_a: return false;
    default: return true;
  }
}

}  // namespace

LayerWeights::LayerWeights(const ModelConfig& config, std::int64_t layer, const VisitWeight& visit)
    : config_(config),
      layer_(layer),
      visit_(visit),
      prefix_(config.trunk + "layers." + std::to_string(layer) + ".") {}

void LayerWeights::vector(WeightRole role, WeightPart part, const std::string& name, std::int64_t size) {
  visit_({.role = role, .part = part, .layer = layer_, .name = prefix_ + name, .shape = {size}});
}

void LayerWeights::wide_vector(WeightRole role, WeightPart part, const std::string& name, std::int64_t size) {
  visit_({.role = role,
          .part = part,
          .layer = layer_,
          .name = prefix_ + name,
          .shape = {size},
          .may_be_f32 = true});
}

void LayerWeights::matrix(WeightRole role, WeightPart part, const std::string& name, std::int64_t rows,
                          std::int64_t cols, SplitAxis split) {
  const std::string module = prefix_ + name;
  const ModuleFormat format = quantizes_role(role) ? config_.quantization.format_of(module) : ModuleFormat{};
  visit_({.role = role,
          .part = part,
          .layer = layer_,
          .name = module,
          .shape = {rows, cols},
          .format = format.format,
          .fp8_scales = format.fp8_scales,
          .split = split,
          .by_expert = role == WeightRole::router});
}

void LayerWeights::attention() {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t q = config_.num_attention_heads * config_.head_dim;
  const std::int64_t gates = config_.attention_output_gate ? q : 0;
  const std::int64_t kv = config_.num_key_value_heads * config_.head_dim;
  const auto projection = [&](WeightRole role, WeightRole bias, const std::string& name, std::int64_t rows,
                              std::int64_t cols, SplitAxis split) {
    matrix(role, WeightPart::attention, name, rows, cols, split);
    if (config_.attention_bias) vector(bias, WeightPart::attention, name + ".bias", rows);
  };
  projection(WeightRole::query, WeightRole::query_bias, "self_attn.q_proj", q + gates, hidden,
             SplitAxis::rows);
  projection(WeightRole::key, WeightRole::key_bias, "self_attn.k_proj", kv, hidden, SplitAxis::rows);
  projection(WeightRole::value, WeightRole::value_bias, "self_attn.v_proj", kv, hidden, SplitAxis::rows);
  if (config_.query_key_norm) {
    vector(WeightRole::query_norm, WeightPart::norms, "self_attn.q_norm.weight", config_.head_dim);
    vector(WeightRole::key_norm, WeightPart::norms, "self_attn.k_norm.weight", config_.head_dim);
  }
  if (config_.attention_sinks)
    vector(WeightRole::sinks, WeightPart::norms, "self_attn.sinks", config_.num_attention_heads);
  projection(WeightRole::attention_output, WeightRole::attention_output_bias, "self_attn.o_proj", hidden, q,
             SplitAxis::columns);
}

void LayerWeights::mlp(const MlpRoles& roles, WeightPart part, const std::string& prefix,
                       std::int64_t width) {
  const std::int64_t hidden = config_.hidden_size;
  matrix(roles.gate, part, prefix + "gate_proj", width, hidden, SplitAxis::rows);
  matrix(roles.up, part, prefix + "up_proj", width, hidden, SplitAxis::rows);
  matrix(roles.down, part, prefix + "down_proj", hidden, width, SplitAxis::columns);
}

void LayerWeights::experts() {
  const std::int64_t hidden = config_.hidden_size, width = config_.intermediate_size;
  expert_matrix(WeightRole::expert_gate, "mlp.experts.{}.gate_proj", width, hidden, SplitAxis::rows);
  expert_matrix(WeightRole::expert_up, "mlp.experts.{}.up_proj", width, hidden, SplitAxis::rows);
  expert_matrix(WeightRole::expert_down, "mlp.experts.{}.down_proj", hidden, width, SplitAxis::columns);
}

void LayerWeights::expert_matrix(WeightRole role, const std::string& name, std::int64_t rows,
                                 std::int64_t cols, SplitAxis split) {
  Weight weight{.role = role,
                .part = WeightPart::experts,
                .layer = layer_,
                .name = prefix_ + name,
                .shape = {rows, cols},
                .use = TensorUse::experts,
                .split = split,
                .own_experts = config_.num_local_experts};
  // The experts of a layer have one format; the first one's is looked up.
  const ModuleFormat format = config_.quantization.format_of(weight.name_of(0));
  weight.format = format.format;
  weight.fp8_scales = format.fp8_scales;
  visit_(weight);
}

void LayerWeights::stacked_experts(WeightRole role, const std::string& name, std::int64_t rows,
                                   std::int64_t cols, SplitAxis split) {
  visit_({.role = role,
          .part = WeightPart::experts,
          .layer = layer_,
          .name = prefix_ + name,
          .shape = {config_.num_local_experts, rows, cols},
          .use = TensorUse::experts,
          .split = split,
          .by_expert = true,
          .is_bare = true});
}

void LayerWeights::filters(WeightRole role, const std::string& name, std::int64_t channels,
                           std::int64_t taps) {
  visit_({.role = role,
          .part = WeightPart::linear_attention,
          .layer = layer_,
          .name = prefix_ + name,
          .shape = {channels, 1, taps},
          .is_list = true});
}

void visit_embedding(const ModelConfig& config, const VisitWeight& visit) {
  visit({.role = WeightRole::embedding,
         .part = WeightPart::embedding,
         .name = config.trunk + "embed_tokens",
         .shape = {config.vocab_size, config.hidden_size},
         .use = TensorUse::one_row,
         .split = SplitAxis::rows});
}

void visit_head(const ModelConfig& config, const VisitWeight& visit) {
  visit({.role = WeightRole::final_norm,
         .part = WeightPart::norms,
         .name = config.trunk + "norm.weight",
         .shape = {config.hidden_size}});
  if (config.tie_word_embeddings) return;
  const ModuleFormat format = config.quantization.format_of(config.head + "lm_head");
  visit({.role = WeightRole::lm_head,
         .part = WeightPart::lm_head,
         .name = config.head + "lm_head",
         .shape = {config.vocab_size, config.hidden_size},
         .format = format.format,
         .fp8_scales = format.fp8_scales,
         .split = SplitAxis::rows});
}

}  // namespace nibble
