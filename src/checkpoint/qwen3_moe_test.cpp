#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/text_file.h"

namespace nibble {
namespace {

// hidden 64, 1 layer, 2 query heads and 1 key head of 32, 2 experts top-1 of width 32, vocabulary 48.
class Qwen {
 public:
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"Qwen3MoeForCausalLM\"]"},
      {"vocab_size", "48"},
      {"hidden_size", "64"},
      {"num_hidden_layers", "1"},
      {"max_position_embeddings", "4096"},
      {"rms_norm_eps", "1e-6"},
      {"num_attention_heads", "2"},
      {"num_key_value_heads", "1"},
      {"head_dim", "32"},
      {"rope_theta", "1000000.0"},
      {"num_experts", "2"},
      {"num_experts_per_tok", "1"},
      {"moe_intermediate_size", "32"},
      {"norm_topk_prob", "true"},
      {"eos_token_id", "40"},
  };
  std::string beside;  // hf_quant_config.json

  std::string config() const {
    std::string text;
    for (const auto& [name, value] : fields) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + value;
    return text + "}";
  }
  Result<ModelConfig> read() const { return parse_model_config(config(), {}, beside); }
  std::string refused() const {
    const Result<ModelConfig> read_config = read();
    EXPECT_FALSE(read_config.ok());
    EXPECT_EQ(read_config.status().exit_code(), 3);
    return read_config.status().message();
  }
};

std::string refused_with(const std::string& field, const std::string& json) {
  Qwen model;
  model.fields[field] = json;
  return model.refused();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

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

TensorFormat format_of(const Qwen& model, std::string_view module) {
  return model.read().value().quantization.format_of(module);
}

TEST(Quantization, IsATensorsNotAModels) {
  Qwen fp8;
  fp8.fields["quantization_config"] =
      R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],
          "modules_to_not_convert":["lm_head","model.layers.0.mlp.gate","model.layers.1.self_attn"]})";
  EXPECT_EQ(format_of(fp8, "model.layers.0.self_attn.q_proj"), TensorFormat::fp8_block);
  EXPECT_EQ(format_of(fp8, "model.layers.1.self_attn.q_proj"), TensorFormat::bf16) << "in a module named";
  EXPECT_EQ(format_of(fp8, "model.layers.10.self_attn.q_proj"), TensorFormat::fp8_block) << "not layer 1";
  EXPECT_EQ(format_of(fp8, "lm_head"), TensorFormat::bf16);

  // ModelOpt's two spellings.
  const std::string modelopt =
      R"("quant_algo":"NVFP4","group_size":16,"exclude_modules":["lm_head","model.layers.*.mlp.gate*","model.layers.0.self_attn*"])";
  Qwen flat, beside;
  flat.fields["quantization_config"] = "{\"quant_method\":\"modelopt\"," + modelopt + "}";
  beside.beside = "{\"quantization\":{" + modelopt + "}}";
  for (const Qwen& model : {flat, beside}) {
    EXPECT_EQ(format_of(model, "model.layers.0.mlp.experts.1.up_proj"), TensorFormat::nvfp4);
    EXPECT_EQ(format_of(model, "model.layers.0.self_attn.q_proj"), TensorFormat::bf16);
    EXPECT_EQ(format_of(model, "lm_head"), TensorFormat::bf16);
  }

  Qwen mixed;
  mixed.beside =
      R"({"quantization":{"quant_algo":"MIXED_PRECISION","exclude_modules":["mtp*"],"quantized_layers":{
      "model.layers.0.mlp.experts.0.gate_proj":{"quant_algo":"W4A16_NVFP4","group_size":16}}}})";
  EXPECT_TRUE(contains(mixed.refused(), "the experts of a layer must have one format"));

  Qwen packed;
  packed.fields["quantization_config"] =
      R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["lm_head","re:.*mlp.gate$","re:.*self_attn\\..*"]})";
  EXPECT_EQ(format_of(packed, "model.layers.0.mlp.gate"), TensorFormat::bf16);
  EXPECT_EQ(format_of(packed, "model.layers.0.mlp.gate_proj"), TensorFormat::nvfp4_packed);
  EXPECT_EQ(format_of(packed, "model.layers.3.self_attn.o_proj"), TensorFormat::bf16);
}

TEST(Quantization, WhatIsNotKnownIsRefusedByItsName) {
  const auto refused = [](const std::string& json) { return refused_with("quantization_config", json); };
  for (const char* method : {"awq", "gptq"}) {
    const std::string message = refused("{\"quant_method\":\"" + std::string(method) + "\"}");
    EXPECT_TRUE(contains(message, method)) << message;
    EXPECT_TRUE(contains(message, "`nibble quantize`")) << message;
  }
  EXPECT_TRUE(contains(refused(R"({"quant_method":"fp8"})"), "weight_block_size is missing"));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"fp8","weight_block_size":[32,32]})"), "[128, 128]"));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"modelopt","quant_algo":"FP8"})"), "\"FP8\""));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})"),
                       "config_groups is missing"));
  EXPECT_TRUE(contains(
      refused(R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["re:a|b"]})"),
      "re:a|b"));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"mxfp4"})"), "mxfp4-pack-quantized"));
}

// ---- checkpoints
// --------------------------------------------------------------------------------------------

struct Written {
  Qwen model;
  std::vector<TestTensor> tensors;
  TestFolder folder;

  // Every tensor that is asked for, of bytes that are ones as bf16 or as scales.
  explicit Written(const std::string& quantization) {
    if (!quantization.empty()) model.fields["quantization_config"] = quantization;
    for (const ExpectedTensor& tensor : expected_tensors(model.read().value())) add(tensor);
  }
  void add(const ExpectedTensor& tensor) {
    const std::string pattern = tensor.dtype == DType::f32    ? std::string("\0\0\x80\x3f", 4)
                                : tensor.dtype == DType::bf16 ? std::string("\x80\x3f", 2)
                                                              : std::string("\x38", 1);
    TestTensor made{.name = tensor.name};
    made.dtype = tensor.dtype == DType::f32    ? "F32"
                 : tensor.dtype == DType::bf16 ? "BF16"
                 : tensor.dtype == DType::u8   ? "U8"
                                               : "F8_E4M3";
    for (const std::int64_t extent : tensor.shape.extents()) made.shape.push_back(extent);
    for (std::int64_t i = 0; i < tensor.shape.count(); ++i) made.bytes += pattern;
    tensors.push_back(std::move(made));
  }
  TestTensor& tensor(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const TestTensor& each) { return each.name == name; });
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }
  Status check() {
    folder.write("config.json", model.config());
    folder.write("model.safetensors", safetensors_file(tensors));
    ModelConfig config = read_model_config(folder.path()).value();
    const WeightSource source = WeightSource::open(folder.path()).value();
    read_stored_formats(config, source);
    ThreadPool threads(2);
    return check_tensors(config, source, threads);
  }
};

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
  EXPECT_EQ(refused(grid), "tensor \"" + module +
                               ".weight_scale_inv\" has the shape [2, 1]; the configuration asks for [1, 1]");

  Written zero(fp8_config);
  zero.tensor(module + ".weight_scale_inv").bytes = std::string(4, '\0');
  EXPECT_TRUE(contains(refused(zero), module + ".weight_scale_inv\" holds 1 scales that are NaN, zero"));

  Written none(packed_config);
  none.tensor(module + ".weight_scale").bytes[3] = '\x7f';
  EXPECT_EQ(refused(none),
            "tensor \"" + module + ".weight_scale\" holds 1 scales that are NaN, the first at [0, 3]");

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
