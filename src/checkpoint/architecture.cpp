#include "checkpoint/architecture.h"

#include <array>

#include "base/check.h"
#include "checkpoint/architectures.h"

namespace nibble {
namespace {

constexpr std::array list = {
    Architecture{"GptOssForCausalLM", parse_gpt_oss_config, visit_gpt_oss_weights, "mxfp4"},
    Architecture{"Qwen3MoeForCausalLM", parse_qwen3_moe_config, visit_qwen3_moe_weights, {}},
    Architecture{"Qwen3NextForCausalLM",
                 parse_qwen3_next_config,
                 visit_qwen3_next_weights,
                 {},
                 left_alone_by_qwen3_next},
    Architecture{"Qwen3_5MoeForConditionalGeneration",
                 parse_qwen3_5_moe_config,
                 visit_qwen3_next_weights,
                 {},
                 left_alone_by_qwen3_next},
    Architecture{"Qwen3_5MoeForCausalLM",
                 parse_qwen3_5_moe_config,
                 visit_qwen3_next_weights,
                 {},
                 left_alone_by_qwen3_next},
    Architecture{"Qwen3_5ForConditionalGeneration",
                 parse_qwen3_5_config,
                 visit_qwen3_next_weights,
                 {},
                 left_alone_by_qwen3_next},
    Architecture{
        "Qwen3_5ForCausalLM", parse_qwen3_5_config, visit_qwen3_next_weights, {}, left_alone_by_qwen3_next},
    Architecture{"DeepseekV3ForCausalLM",
                 parse_deepseek_v3_config,
                 visit_deepseek_v3_weights,
                 {},
                 left_alone_by_deepseek_v3},
    Architecture{"KimiK25ForConditionalGeneration",
                 parse_kimi_k2_5_config,
                 visit_deepseek_v3_weights,
                 {},
                 left_alone_by_deepseek_v3},
    Architecture{"Glm4MoeLiteForCausalLM",
                 parse_deepseek_v3_config,
                 visit_deepseek_v3_weights,
                 {},
                 left_alone_by_deepseek_v3},
};

}  // namespace

std::string Weight::name_of(std::int64_t expert) const {
  const std::size_t at = name.find("{}");
  NIBBLE_CHECK(at != name.npos && own_experts > 0);
  return name.substr(0, at) + std::to_string(expert) + name.substr(at + 2);
}

std::span<const Architecture> architectures() { return list; }

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& each : list) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& each : list) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

void visit_weights(const ModelConfig& config, const VisitWeight& visit) {
  const Architecture* architecture = find_architecture(config.architecture);
  NIBBLE_CHECK(architecture != nullptr, "a config is read by an architecture of the list");
  architecture->visit_weights(config, visit);
}

LayerCache layer_cache(const ModelConfig& config, std::int64_t layer) {
  const LayerDescription& described = config.layers[static_cast<std::size_t>(layer)];
  if (described.mixer == Mixer::gated_delta) return {};
  if (described.mixer == Mixer::latent) return {.values = config.latent.rank + config.latent.rotated_dim};
  return {.values = 2 * config.num_key_value_heads * config.head_dim, .window = described.window};
}

}  // namespace nibble
