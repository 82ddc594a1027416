#include <string>

#include "models/decoder.h"
#include "models/model.h"

namespace nibble {
namespace {

struct ModelEntry {
  std::string_view name;  // as in config.json's "architectures"
  Result<std::unique_ptr<Model>> (*bind)(const ModelConfig& config, WeightSource weights);
};

constexpr ModelEntry models[] = {
    {"GptOssForCausalLM", bind_decoder},
    {"Qwen3MoeForCausalLM", bind_decoder},
};

}  // namespace

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config, WeightSource weights) {
  std::string known;
  for (const ModelEntry& architecture : models) {
    if (architecture.name == config.architecture) return architecture.bind(config, std::move(weights));
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return broken_model("no model is built for the architecture " + config.architecture + "; there is " +
                      known);
}

}  // namespace nibble
