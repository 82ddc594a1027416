// Arbitrary bytes as config.json and generation_config.json (split at the first NUL): what is accepted
// must be a model whose tensors can be listed and sized.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nibble;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = std::min(text.find('\0'), text.size());
  const std::string_view generation = text.substr(std::min(split + 1, text.size()));
  const Result<ModelConfig> config =
      parse_model_config(std::string(text.substr(0, split)), std::string(generation));
  if (!config.ok()) return 0;
  NIBBLE_CHECK(config->num_experts_per_tok >= 1 && config->num_experts_per_tok <= config->num_local_experts);
  NIBBLE_CHECK(static_cast<std::int64_t>(config->layers.size()) == config->num_hidden_layers);
  NIBBLE_CHECK(!config->eos_token_ids.empty());
  NIBBLE_CHECK(active_bytes_per_token(*config) > 0);
  for (const ExpectedTensor& tensor : expected_tensors(*config)) NIBBLE_CHECK(tensor.bytes() > 0);
  return 0;
}
