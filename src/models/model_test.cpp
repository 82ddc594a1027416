#include "models/model.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace nibble {
namespace {

const std::filesystem::path example = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example";

Status bind_example(const ModelConfig& config) {
  return bind_model(config, std::move(WeightSource::open(example)).value()).status();
}

TEST(BindModel, RefusesByNameWhatItWasNotBuiltFor) {
  const ModelConfig config = read_model_config(example).value();
  EXPECT_TRUE(bind_example(config).ok());

  ModelConfig stranger = config;
  stranger.architecture = "LlamaForCausalLM";
  EXPECT_NE(bind_example(stranger).message().find("GptOssForCausalLM"), std::string::npos);

  ModelConfig narrow = config;
  narrow.head_dim = 16;
  EXPECT_NE(bind_example(narrow).message().find("head_dim 16"), std::string::npos);

  ModelConfig latent = config;
  latent.latent = {.rank = 40, .plain_dim = 8, .rotated_dim = 16, .value_dim = 8};
  EXPECT_NE(bind_example(latent).message().find("kv_lora_rank 40 with qk_rope_head_dim 16"),
            std::string::npos);

  ModelConfig wide = config;
  wide.hidden_size = 192;
  EXPECT_NE(bind_example(wide).message().find("model.embed_tokens.weight"), std::string::npos);
  EXPECT_EQ(bind_example(wide).exit_code(), 3);
}

}  // namespace
}  // namespace nibble
