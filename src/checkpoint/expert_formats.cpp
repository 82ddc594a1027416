#include "checkpoint/expert_formats.h"

#include "base/quote.h"

namespace nibble {
namespace {

using VisitWeights = void (*)(const ModelConfig& config, const VisitWeight& visit);

Status check_claims(const ModelConfig& config, VisitWeights visit_weights) {
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || !weight.is_matrix() || weight.is_bare) return;
    if (weight.own_experts == 0) status = config.quantization.check_claims(weight.name);
    for (std::int64_t expert = 0; status.ok() && expert < weight.own_experts; ++expert)
      status = config.quantization.check_claims(weight.name_of(expert));
  });
  return status;
}

Status check_expert_formats(const ModelConfig& config) {
  if (!config.quantization.tells_experts_apart()) return {};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = config.trunk + "layers." + std::to_string(layer) + ".mlp.experts.";
    const ModuleFormat first = config.quantization.format_of(prefix + "0.gate_proj");
    for (std::int64_t expert = 0; expert < config.num_local_experts; ++expert) {
      for (const char* name : {".gate_proj", ".up_proj", ".down_proj"}) {
        const std::string module = prefix + std::to_string(expert) + name;
        const ModuleFormat format = config.quantization.format_of(module);
        if (format == first) continue;
        return broken_model(
            "quantization_config gives " + quote(module) + " the format " +
            std::string(tensor_format_name(format.format)) + " and " + quote(prefix + "0.gate_proj") + " " +
            std::string(tensor_format_name(first.format)) + "; the experts of a layer must have one format");
      }
    }
  }
  return {};
}

Status check_columns(const ModelConfig& config, VisitWeights visit_weights) {
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || !weight.is_matrix()) return;
    const std::int64_t block = block_columns(weight.format), cols = weight.shape[weight.shape.rank() - 1];
    if (cols % block == 0) return;
    status = broken_model(quote(weight.own_experts > 0 ? weight.name_of(0) : weight.name) + " has " +
                          std::to_string(cols) + " columns, which are not whole blocks of " +
                          std::to_string(block) + ", as " + std::string(tensor_format_name(weight.format)) +
                          " has them");
  });
  return status;
}

}  // namespace

Status check_experts_in_all(const ModelConfig& config) {
  constexpr std::int64_t most = 1 << 17;
  if (config.num_local_experts * config.num_hidden_layers <= most) return {};
  return broken_model("num_experts (" + std::to_string(config.num_local_experts) + ") in each of " +
                      std::to_string(config.num_hidden_layers) + " layers are more than " +
                      std::to_string(most) + " experts");
}

Status check_formats(const ModelConfig& config,
                     void (*visit_weights)(const ModelConfig& config, const VisitWeight& visit)) {
  NIBBLE_RETURN_IF_ERROR(check_claims(config, visit_weights));
  NIBBLE_RETURN_IF_ERROR(check_expert_formats(config));
  return check_columns(config, visit_weights);
}

}  // namespace nibble
