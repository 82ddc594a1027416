#include <string>

#include "models/gpt_oss.h"
#include "models/model.h"

namespace nibble {
namespace {

struct Architecture {
  std::string_view name;  // as in config.json's "architectures"
  Result<std::unique_ptr<Model>> (*bind)(const ModelConfig& config, WeightSource weights);
};

constexpr Architecture architectures[] = {
    {"GptOssForCausalLM", bind_gpt_oss},
};

}  // namespace

Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config, WeightSource weights) {
  std::string known;
  for (const Architecture& architecture : architectures) {
    if (architecture.name == config.architecture) return architecture.bind(config, std::move(weights));
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return broken_model("no model is built for the architecture " + config.architecture + "; there is " +
                      known);
}

}  // namespace nibble
