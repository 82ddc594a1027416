#include <string>

#include "models/decoder.h"
#include "models/model.h"
#include "models/model_traits.h"

namespace nibble {
namespace {

struct ModelEntry {
  std::string_view name;  // as in config.json's "architectures"
  Result<std::unique_ptr<Model>> (*bind)(const ModelConfig& config,
                                         std::shared_ptr<const WeightSource> weights, const RankPart& part);
};

constexpr ModelEntry models[] = {
    {"GptOssForCausalLM", bind_decoder},
    {"Qwen3MoeForCausalLM", bind_decoder},
    {"Qwen3NextForCausalLM", bind_decoder},
    {"Qwen3_5MoeForConditionalGeneration", bind_decoder},
    {"Qwen3_5MoeForCausalLM", bind_decoder},
    {"DeepseekV3ForCausalLM", bind_decoder},
    {"Qwen3_5ForConditionalGeneration", bind_decoder},
    {"Qwen3_5ForCausalLM", bind_decoder},
    {"KimiK25ForConditionalGeneration", bind_decoder},
    {"Glm4MoeLiteForCausalLM", bind_decoder},
};

Result<const ModelEntry*> entry_of(const ModelConfig& config) {
  std::string known;
  for (const ModelEntry& entry : models) {
    if (entry.name == config.architecture) return &entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  return broken_model("no model is built for the architecture " + config.architecture + "; there is " +
                      known);
}

}  // namespace

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config, WeightSource weights) {
  NIBBLE_ASSIGN(const ModelEntry* entry, entry_of(config));
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  return entry->bind(config, std::make_shared<const WeightSource>(std::move(weights)),
                     rank_part(traits, 1, 1, 0));
}

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config,
                                          std::shared_ptr<const WeightSource> weights, const RankPart& part) {
  NIBBLE_ASSIGN(const ModelEntry* entry, entry_of(config));
  return entry->bind(config, std::move(weights), part);
}

}  // namespace nibble
