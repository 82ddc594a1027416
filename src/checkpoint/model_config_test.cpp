#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "checkpoint/architecture.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

using Checkpoint = TestCheckpoint;

ModelConfig parsed(const Checkpoint& checkpoint) { return parse_model_config(checkpoint.config()).value(); }

std::string refused(const Checkpoint& checkpoint) {
  const Result<ModelConfig> config = parse_model_config(checkpoint.config());
  EXPECT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::broken_model);
  return config.status().message();
}

std::string refused_with(const std::string& field, const std::string& json) {
  Checkpoint checkpoint;
  checkpoint.set(field, json);
  return refused(checkpoint);
}

std::string refused_without(const std::string& field) {
  Checkpoint checkpoint;
  checkpoint.remove(field);
  return refused(checkpoint);
}

TEST(ModelConfig, ReadsEveryField) {
  const ModelConfig config = parsed({});
  EXPECT_EQ(config.architecture, "GptOssForCausalLM");
  EXPECT_EQ(config.vocab_size, 96);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.max_position_embeddings, 4096);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_EQ(config.layers, (std::vector<LayerDescription>{{.window = 8}, {}}));
  EXPECT_EQ(config.sliding_window, 8);
  EXPECT_EQ(config.rope_theta, 150000);
  ASSERT_TRUE(config.yarn.has_value());
  EXPECT_EQ(config.yarn->factor, 32);
  EXPECT_EQ(config.yarn->beta_fast, 32);
  EXPECT_EQ(config.yarn->beta_slow, 1);
  EXPECT_EQ(config.yarn->original_max_position_embeddings, 128);
  EXPECT_FALSE(config.yarn->truncate);
  EXPECT_NEAR(config.yarn->attention_factor, 1.3465736, 1e-7);
  EXPECT_EQ(config.num_local_experts, 4);
  EXPECT_EQ(config.num_experts_per_tok, 2);
  EXPECT_EQ(config.intermediate_size, 32);
  EXPECT_EQ(config.swiglu_limit, 7);
  EXPECT_EQ(config.eos_token_ids, std::vector<TokenId>{90});
}

TEST(ModelConfig, ReadsBothFilesOfAFolder) {
  Checkpoint checkpoint;
  checkpoint.write();
  EXPECT_EQ(read_model_config(checkpoint.path())->eos_token_ids, (std::vector<TokenId>{90, 91}));
  std::filesystem::remove(checkpoint.path() / "generation_config.json");
  EXPECT_EQ(read_model_config(checkpoint.path())->eos_token_ids, (std::vector<TokenId>{90}));
  std::filesystem::remove(checkpoint.path() / "config.json");
  const Status missing = read_model_config(checkpoint.path()).status();
  EXPECT_EQ(missing.code(), StatusCode::not_found);
  EXPECT_EQ(missing.message(), "cannot open \"" + (checkpoint.path() / "config.json").native() +
                                   "\": No such file or directory");
}

TEST(ModelConfig, WhatIsAbsentHasItsDocumentedDefault) {
  Checkpoint checkpoint;
  for (const char* field : {"swiglu_limit", "attention_bias", "tie_word_embeddings", "torch_dtype",
                            "hidden_act", "layer_types", "experts_per_token"}) {
    checkpoint.remove(field);
  }
  checkpoint.set("num_hidden_layers", "3");
  checkpoint.set("rope_scaling", R"({"rope_type":"yarn","factor":4,"original_max_position_embeddings":64})");
  const ModelConfig config = parsed(checkpoint);
  EXPECT_EQ(config.swiglu_limit, 7);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.layers, (std::vector<LayerDescription>{{.window = 8}, {}, {.window = 8}}));
  EXPECT_TRUE(config.yarn->truncate) << "absent means true";
  EXPECT_EQ(config.yarn->beta_fast, 32);
}

TEST(ModelConfig, NullMeansAbsent) {
  Checkpoint checkpoint;
  checkpoint.set("rope_scaling", "null");
  checkpoint.set("swiglu_limit", "null");
  EXPECT_FALSE(parsed(checkpoint).yarn.has_value());
  EXPECT_EQ(parsed(checkpoint).swiglu_limit, 7);
}

TEST(ModelConfig, TheNewerRopeParametersMeanTheSame) {
  Checkpoint checkpoint;
  checkpoint.remove("rope_scaling");
  checkpoint.remove("rope_theta");
  checkpoint.set("rope_parameters", R"({"rope_type":"yarn","rope_theta":10000.0,"factor":8.0,"beta_fast":16,
                                        "beta_slow":2,"original_max_position_embeddings":64,"truncate":true,
                                        "attention_factor":1.5})");
  checkpoint.remove("torch_dtype");
  checkpoint.set("dtype", "\"bfloat16\"");
  const ModelConfig config = parsed(checkpoint);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.yarn->factor, 8);
  EXPECT_EQ(config.yarn->beta_fast, 16);
  EXPECT_EQ(config.yarn->beta_slow, 2);
  EXPECT_EQ(config.yarn->attention_factor, 1.5);
  checkpoint.set("rope_parameters", R"({"rope_type":"default","rope_theta":10000.0})");
  EXPECT_FALSE(parsed(checkpoint).yarn.has_value());
  checkpoint.set("rope_theta", "20000");
  EXPECT_EQ(refused(checkpoint),
            "config.json: rope_theta and rope_parameters.rope_theta contradict each other");
  checkpoint.set("rope_scaling", R"({"rope_type":"default"})");
  EXPECT_EQ(refused(checkpoint), "config.json: rope_scaling and rope_parameters are both given; keep one");
}

TEST(ModelConfig, EosIdsAreOneOrAListAndMergedWithTheGenerationConfig) {
  Checkpoint checkpoint;
  checkpoint.set("eos_token_id", "[7, 3]");
  const ModelConfig merged = *parse_model_config(checkpoint.config(), R"({"eos_token_id":[5,7]})");
  EXPECT_EQ(merged.eos_token_ids, (std::vector<TokenId>{3, 5, 7}));
  checkpoint.remove("eos_token_id");
  EXPECT_EQ(parse_model_config(checkpoint.config(), R"({"eos_token_id":5})")->eos_token_ids,
            std::vector<TokenId>{5});
  EXPECT_EQ(refused(checkpoint),
            "neither config.json nor generation_config.json names an eos_token_id: no answer would end");
  EXPECT_EQ(parse_model_config(checkpoint.config(), R"({"eos_token_id":[96]})").status().message(),
            "generation_config.json: eos_token_id must be an id below vocab_size (96) or a list of such ids, "
            "not 96");
  EXPECT_EQ(parse_model_config(checkpoint.config(), "[]").status().message(),
            "generation_config.json: not a JSON object");
}

TEST(ModelConfig, AnUnknownArchitectureIsRefusedByNameWithTheListOfSupportedOnes) {
  EXPECT_EQ(refused_with("architectures", "[\"LlamaForCausalLM\"]"),
            "config.json: the architecture \"LlamaForCausalLM\" is not supported; supported are: " +
                architecture_names());
  EXPECT_TRUE(architecture_names().starts_with("GptOssForCausalLM, Qwen3MoeForCausalLM, "));
  EXPECT_EQ(refused_with("architectures", "[\"a\",\"b\"]"),
            "config.json: architectures must be a list of one name, not an array");
  EXPECT_EQ(refused_without("architectures"), "config.json: architectures is missing");
}

TEST(ModelConfig, AMissingFieldIsNamed) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "vocab_size", "num_local_experts",
                            "max_position_embeddings", "rms_norm_eps", "rope_theta", "sliding_window"}) {
    EXPECT_EQ(refused_without(field), "config.json: " + std::string(field) + " is missing");
  }
  Checkpoint neither;
  neither.remove("experts_per_token");
  neither.remove("num_experts_per_tok");
  EXPECT_EQ(refused(neither), "config.json: num_experts_per_tok is missing");
  EXPECT_EQ(refused_with("rope_scaling", R"({"rope_type":"yarn","factor":32})"),
            "config.json: rope_scaling.original_max_position_embeddings is missing");
  EXPECT_EQ(refused_with("rope_scaling", R"({"factor":32})"),
            "config.json: rope_scaling.rope_type is missing");
}

TEST(ModelConfig, ZeroExpertsAreRefused) {
  EXPECT_EQ(refused_with("num_local_experts", "0"),
            "config.json: num_local_experts must be a whole number from 1 to 16384, not 0");
}

TEST(ModelConfig, MoreExpertsATokenThanThereAreAreRefused) {
  Checkpoint checkpoint;
  checkpoint.set("num_local_experts", "1");
  EXPECT_EQ(refused(checkpoint),
            "config.json: num_experts_per_tok (2) is above num_local_experts (1): a token cannot visit more "
            "experts "
            "than there are");
}

TEST(ModelConfig, ContradictionsAreNamed) {
  EXPECT_EQ(refused_with("experts_per_token", "3"),
            "config.json: num_experts_per_tok (2) and experts_per_token (3) contradict each other");
  EXPECT_EQ(refused_with("num_hidden_layers", "3"),
            "config.json: layer_types lists 2 layers, but num_hidden_layers is 3");
  EXPECT_EQ(refused_with("num_key_value_heads", "3"),
            "config.json: num_attention_heads (4) must be a multiple of num_key_value_heads (3)");
  EXPECT_EQ(refused_with("head_dim", "15"), "config.json: head_dim (15) must be even: RoPE rotates pairs");
  EXPECT_EQ(refused_with("hidden_size", "48"),
            "config.json: hidden_size (48) must be a multiple of 32, the block of MXFP4");
  EXPECT_EQ(refused_with("intermediate_size", "33"),
            "config.json: intermediate_size (33) must be a multiple of 32, the block of MXFP4");
}

TEST(ModelConfig, WhatWouldChangeTheArithmeticIsRefused) {
  EXPECT_EQ(refused_with("hidden_act", "\"gelu\""), "config.json: hidden_act must be \"silu\", not \"gelu\"");
  EXPECT_EQ(refused_with("torch_dtype", "\"float32\""),
            "config.json: torch_dtype must be \"bfloat16\", not \"float32\"");
  EXPECT_EQ(refused_with("layer_types", R"(["sliding_attention","linear_attention"])"),
            "config.json: layer_types must be a list of \"sliding_attention\" and \"full_attention\", not "
            "\"linear_attention\"");
  EXPECT_EQ(refused_with("rope_scaling", R"({"rope_type":"llama3","factor":8})"),
            "config.json: rope_scaling.rope_type must be \"yarn\" or \"default\", not \"llama3\"");
  EXPECT_TRUE(
      refused_with("rope_scaling", R"({"rope_type":"yarn","factor":8,"mscale":1})")
          .starts_with("config.json: rope_scaling has the unknown member \"mscale\"; known are rope_type"));
  EXPECT_EQ(refused_without("quantization_config"),
            "config.json: quantization_config is missing: experts must be stored as MXFP4 (quant_method "
            "\"mxfp4\")");
  EXPECT_EQ(refused_with("quantization_config", R"({"quant_method":"fp8"})"),
            "config.json: quantization_config.quant_method must be \"mxfp4\", not \"fp8\"");
}

TEST(ModelConfig, AbsurdAndMistypedValuesAreRefusedByName) {
  EXPECT_EQ(refused_with("vocab_size", "9223372036854775807"),
            "config.json: vocab_size must be a whole number from 1 to 16777216, not 9223372036854775807");
  EXPECT_EQ(refused_with("vocab_size", "99999999999999999999"),
            "config.json: vocab_size must be a whole number from 1 to 16777216, not 1e+20");
  EXPECT_EQ(refused_with("hidden_size", "-64"),
            "config.json: hidden_size must be a whole number from 1 to 1048576, not -64");
  EXPECT_EQ(refused_with("hidden_size", "64.0"),
            "config.json: hidden_size must be a whole number from 1 to 1048576, not 64");
  EXPECT_EQ(refused_with("hidden_size", "\"64\\u001b\""),
            "config.json: hidden_size must be a whole number from 1 to 1048576, not \"64\\x1b\"");
  EXPECT_EQ(refused_with("sliding_window", "2147483648"),
            "config.json: sliding_window must be a whole number from 1 to 2147483647, not 2147483648");
  EXPECT_EQ(refused_with("rms_norm_eps", "0"), "config.json: rms_norm_eps must be a number above 0, not 0");
  EXPECT_EQ(refused_with("attention_bias", "1"), "config.json: attention_bias must be true or false, not 1");
  EXPECT_EQ(refused_with("eos_token_id", "\"x\""),
            "config.json: eos_token_id must be an id below vocab_size (96) or a list of such ids, not \"x\"");
  EXPECT_EQ(refused_with("rope_scaling", "[]"), "config.json: rope_scaling must be an object, not an array");
}

TEST(ModelConfig, JsonNestedTenThousandDeepIsRefused) {
  const std::string message =
      refused_with("architectures", std::string(10'000, '[') + std::string(10'000, ']'));
  EXPECT_TRUE(message.starts_with("config.json: invalid JSON at byte ")) << message;
}

TEST(ModelConfig, DuplicateFieldsAreRefused) {
  Checkpoint checkpoint;
  const Status status = parse_model_config("{\"hidden_size\": 32," + checkpoint.config().substr(1)).status();
  EXPECT_TRUE(status.message().starts_with("config.json: invalid JSON at byte ")) << status.message();
}

// gpt-oss as published: 36 layers of 128 experts, 24 of 32. The bytes of a token are those of a
// decode step, to one per cent (routers and biases).
TEST(ExpectedTensors, CountTheBytesOfTheRealModels) {
  const auto published = [](const char* layers, const char* experts) {
    Checkpoint checkpoint;
    checkpoint.remove("layer_types");
    checkpoint.remove("experts_per_token");
    checkpoint.set("num_hidden_layers", layers);
    checkpoint.set("num_local_experts", experts);
    checkpoint.set("num_experts_per_tok", "4");
    checkpoint.set("hidden_size", "2880");
    checkpoint.set("intermediate_size", "2880");
    checkpoint.set("num_attention_heads", "64");
    checkpoint.set("num_key_value_heads", "8");
    checkpoint.set("head_dim", "64");
    checkpoint.set("vocab_size", "201088");
    return parsed(checkpoint);
  };
  const auto parameters = [](const ModelConfig& config) {
    std::int64_t count = 0;
    for (const ExpectedTensor& tensor : expected_tensors(config)) {
      if (tensor.scales == ScaleKind::none)
        count += tensor.shape.count() * (tensor.dtype == DType::u8 ? 2 : 1);
    }
    return count;
  };
  EXPECT_NEAR(static_cast<double>(parameters(published("36", "128"))), 116.83e9, 5e6);
  EXPECT_NEAR(static_cast<double>(parameters(published("24", "32"))), 20.91e9, 5e6);
  EXPECT_NEAR(static_cast<double>(active_bytes_per_token(published("36", "128"))), 4.97e9, 4e7);
  EXPECT_NEAR(static_cast<double>(active_bytes_per_token(published("24", "32"))), 3.70e9, 1e7);
}

TEST(ExpectedTensors, ATiedHeadIsTheEmbeddingReadWhole) {
  Checkpoint checkpoint;
  const ModelConfig untied = parsed(checkpoint);
  checkpoint.set("tie_word_embeddings", "true");
  const ModelConfig tied = parsed(checkpoint);
  EXPECT_EQ(expected_tensors(untied).size(), expected_tensors(tied).size() + 1);
  EXPECT_EQ(active_bytes_per_token(untied), active_bytes_per_token(tied));
}

TEST(ExpectedTensors, BiasesAreThereOnlyWhereTheConfigurationSaysSo) {
  Checkpoint checkpoint;
  const std::size_t with = expected_tensors(parsed(checkpoint)).size();
  checkpoint.set("attention_bias", "false");
  EXPECT_EQ(expected_tensors(parsed(checkpoint)).size(), with - 8);
}

}  // namespace
}  // namespace nibble
