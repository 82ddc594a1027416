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
};

}  // namespace

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config, WeightSource weights) {
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  return bind_model(config, std::make_shared<const WeightSource>(std::move(weights)),
                    rank_part(traits, 1, 1, 0));
}

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config,
                                          std::shared_ptr<const WeightSource> weights, const RankPart& part) {
  std::string known;
  for (const ModelEntry& architecture : models) {
    if (architecture.name == config.architecture) return architecture.bind(config, std::move(weights), part);
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return broken_model("no model is built for the architecture " + config.architecture + "; there is " +
                      known);
}

}  // namespace nibble
