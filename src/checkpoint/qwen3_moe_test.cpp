#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/qwen3_moe_test_util.h"

namespace nibble {
namespace {

TEST(Qwen3Moe, ReadsThePublishedConfig) {
  const std::filesystem::path folder =
      std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/models/Qwen3-235B-A22B";
  const ModelConfig config = read_model_config(folder).value();
  EXPECT_EQ(config.num_hidden_layers, 94);
  EXPECT_EQ(config.layers, std::vector<LayerDescription>(94));
  EXPECT_EQ(config.num_attention_heads * config.head_dim, 8192) << "wider than the model";
  EXPECT_TRUE(config.query_key_norm);
  EXPECT_FALSE(config.attention_sinks);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.router_score, RouterScore::softmax_of_all);
  EXPECT_TRUE(config.router_renormalises);
  EXPECT_EQ(config.activation, ExpertActivation::silu);
  EXPECT_EQ(config.intermediate_size, 1536) << "of one expert, not of a dense layer";
  EXPECT_FALSE(config.yarn.has_value());
}

TEST(Qwen3Moe, HasItsTensorsInTheOrderOfTheForward) {
  std::vector<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(Qwen().read().value())) names.push_back(tensor.name);
  const std::string layer = "model.layers.0.", experts = layer + "mlp.experts.";
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "model.embed_tokens.weight", layer + "input_layernorm.weight", layer + "self_attn.q_proj.weight",
          layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
          layer + "self_attn.q_norm.weight", layer + "self_attn.k_norm.weight",
          layer + "self_attn.o_proj.weight", layer + "post_attention_layernorm.weight",
          layer + "mlp.gate.weight", experts + "0.gate_proj.weight", experts + "1.gate_proj.weight",
          experts + "0.up_proj.weight", experts + "1.up_proj.weight", experts + "0.down_proj.weight",
          experts + "1.down_proj.weight", "model.norm.weight", "lm_head.weight"}));
}

TEST(Qwen3Moe, RefusesWhatWouldBeAnotherForward) {
  Qwen without;
  without.fields.erase("norm_topk_prob");
  EXPECT_EQ(without.refused(), "config.json: norm_topk_prob is missing");
  EXPECT_EQ(
      refused_with("num_experts_per_tok", "3"),
      "config.json: num_experts_per_tok (3) is above num_experts (2): a token cannot visit more experts "
      "than there are");
  EXPECT_TRUE(
      contains(refused_with("partial_rotary_factor", "0.5"), "partial_rotary_factor (0.5) is no field"));
  EXPECT_TRUE(contains(refused_with("attention_bias", "true"), "attention_bias must be false"));
  EXPECT_TRUE(contains(refused_with("mlp_only_layers", "[0]"), "mlp_only_layers must be empty"));
  EXPECT_TRUE(contains(refused_with("layer_types", "[\"sliding_attention\"]"), "\"full_attention\""));
  EXPECT_TRUE(contains(refused_with("hidden_act", "\"gelu\""), "hidden_act must be \"silu\""));
}

// ---- checkpoints
// --------------------------------------------------------------------------------------------

const std::string fp8_config = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
const std::string packed_config =
    R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["lm_head"]})";
const std::string modelopt_config =
    R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]})";
const std::string mxfp4_config =
    R"({"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized","ignore":["lm_head"]})";

TEST(Qwen3MoeTensors, AreTakenInEveryFormat) {
  for (const std::string& quantization :
       {std::string(), fp8_config, packed_config, modelopt_config, mxfp4_config}) {
    const Status status = Written(quantization).check();
    EXPECT_TRUE(status.ok()) << quantization << ": " << status.message();
  }
}

TEST(Qwen3MoeTensors, AModuleMayHaveStayedInBf16) {
  Written written(fp8_config);
  std::erase_if(written.tensors, [](const TestTensor& tensor) {
    return tensor.name.starts_with("model.layers.0.self_attn.q_proj");
  });
  written.add({.name = "model.layers.0.self_attn.q_proj.weight", .shape = {64, 64}});
  EXPECT_TRUE(written.check().ok()) << written.check().message();
}

TEST(Qwen3MoeTensors, ABadScaleIsNamed) {
  const std::string module = "model.layers.0.mlp.experts.1.up_proj";
  const auto refused = [](Written& written) {
    const Status status = written.check();
    EXPECT_EQ(status.exit_code(), 3);
    return status.message();
  };
  Written missing(fp8_config);
  std::erase_if(missing.tensors,
                [&](const TestTensor& tensor) { return tensor.name == module + ".weight_scale_inv"; });
  EXPECT_EQ(refused(missing), "tensor \"" + module + ".weight_scale_inv\" is missing");

  Written grid(fp8_config);
  TestTensor& scales = grid.tensor(module + ".weight_scale_inv");
  scales.shape = {2, 1};
  scales.bytes += scales.bytes;
  EXPECT_EQ(
      refused(grid),
      "tensor \"" + module +
          ".weight_scale_inv\" of model.safetensors has the shape [2, 1]; the configuration asks for [1, 1]");

  Written zero(fp8_config);
  zero.tensor(module + ".weight_scale_inv").bytes = std::string(4, '\0');
  EXPECT_TRUE(contains(
      refused(zero), module + ".weight_scale_inv\" of model.safetensors holds 1 scales that are NaN, zero"));

  Written none(packed_config);
  none.tensor(module + ".weight_scale").bytes[3] = '\x7f';
  EXPECT_EQ(refused(none),
            "tensor \"" + module +
                ".weight_scale\" of model.safetensors holds 1 scales that are NaN, the first at [0, 3]");

  Written infinite(modelopt_config);
  infinite.tensor(module + ".weight_scale_2").bytes = std::string("\0\0\x80\x7f", 4);
  EXPECT_TRUE(contains(refused(infinite), module + ".weight_scale_2\""));
}

TEST(Qwen3MoeTensors, WhatIsThereTwiceIsExtra) {
  Written fused("");
  fused.add({.name = "model.layers.0.mlp.experts.gate_up_proj", .shape = {2, 64, 64}});
  EXPECT_TRUE(contains(fused.check().message(), "\"model.layers.0.mlp.experts.gate_up_proj\" is extra"));
  Written tied("");
  tied.model.fields["tie_word_embeddings"] = "true";
  EXPECT_TRUE(contains(tied.check().message(), "\"lm_head.weight\" is extra"));
}

}  // namespace
}  // namespace nibble
