#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"

namespace nibble {
namespace {

using Fields = std::map<std::string, std::string>;

std::string json_of(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + value;
  return text + "}";
}

// hidden 64, 4 layers of which the last has attention, 2 query heads and 1 key head of 32, of which 8 rotate;
// 2 heads of keys and 4 of values of 16; 3 experts top-2 of width 32 and a shared one of 48; vocabulary 48.
Fields text_of_a_model() {
  return {{"vocab_size", "48"},
          {"hidden_size", "64"},
          {"num_hidden_layers", "4"},
          {"max_position_embeddings", "4096"},
          {"rms_norm_eps", "1e-6"},
          {"num_attention_heads", "2"},
          {"num_key_value_heads", "1"},
          {"head_dim", "32"},
          {"linear_num_key_heads", "2"},
          {"linear_num_value_heads", "4"},
          {"linear_key_head_dim", "16"},
          {"linear_value_head_dim", "16"},
          {"linear_conv_kernel_dim", "4"},
          {"num_experts", "3"},
          {"num_experts_per_tok", "2"},
          {"moe_intermediate_size", "32"},
          {"shared_expert_intermediate_size", "48"},
          {"eos_token_id", "40"}};
}

Fields next() {
  Fields fields = text_of_a_model();
  fields["architectures"] = "[\"Qwen3NextForCausalLM\"]";
  fields["rope_theta"] = "10000000";
  fields["partial_rotary_factor"] = "0.25";
  fields["full_attention_interval"] = "4";
  fields["norm_topk_prob"] = "true";
  return fields;
}

struct Nested {
  Fields outer = {{"architectures", "[\"Qwen3_5MoeForConditionalGeneration\"]"}};
  Fields text = text_of_a_model();

  Nested() {
    text["layer_types"] = R"(["linear_attention","linear_attention","linear_attention","full_attention"])";
    text["rope_parameters"] =
        R"({"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25,"mrope_section":[2,1,1],)"
        R"("mrope_interleaved":true})";
    text["attn_output_gate"] = "true";
    text["mamba_ssm_dtype"] = "\"float32\"";
  }
  std::string config() const {
    Fields all = outer;
    all["text_config"] = json_of(text);
    return json_of(all);
  }
};

std::string refusal(const std::string& config) {
  const Result<ModelConfig> read = parse_model_config(config);
  EXPECT_FALSE(read.ok()) << config;
  if (read.ok()) return {};
  EXPECT_EQ(read.status().exit_code(), 3);
  return read.status().message();
}

std::string refused_with(const std::string& field, const std::string& json) {
  Fields fields = next();
  if (json.empty()) {
    fields.erase(field);
  } else {
    fields[field] = json;
  }
  return refusal(json_of(fields));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::vector<std::string> lines_of(const ModelConfig& config, std::int64_t layer) {
  std::vector<std::string> lines;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.layer != layer) return;
    visit_stored(weight, weight.own_experts > 0 ? weight.name_of(0) : weight.name,
                 [&](const ExpectedTensor& tensor) {
                   lines.push_back(tensor.name.substr(tensor.name.find("layers.") + 9) + " " +
                                   tensor.shape.to_string());
                 });
  });
  return lines;
}

TEST(Qwen3Next, ReadsThePublishedConfig) {
  const std::filesystem::path folder =
      std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/models/Qwen3-Next-80B-A3B";
  const ModelConfig config = read_model_config(folder).value();
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.delta.value_heads, 32);
  EXPECT_TRUE(config.delta.by_key_head);
  EXPECT_TRUE(config.zero_centred_norms && config.attention_output_gate && config.query_key_norm);
  EXPECT_EQ(config.shared_width, 512);
  EXPECT_EQ(std::count_if(config.layers.begin(), config.layers.end(),
                          [](const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; }),
            36);
  EXPECT_EQ(config.layers[3].mixer, Mixer::attention);
  EXPECT_EQ(layer_cache(config, 0).values, 0);
  EXPECT_EQ(layer_cache(config, 3).values, 2 * 2 * 256);
}

TEST(Qwen3Next, HasItsTensorsInTheOrderOfTheForward) {
  const ModelConfig config = parse_model_config(json_of(next())).value();
  EXPECT_EQ(lines_of(config, 0), (std::vector<std::string>{
                                     "input_layernorm.weight [64]",
                                     "linear_attn.in_proj_qkvz.weight [192, 64]",
                                     "linear_attn.in_proj_ba.weight [8, 64]",
                                     "linear_attn.conv1d.weight [128, 1, 4]",
                                     "linear_attn.dt_bias [4]",
                                     "linear_attn.A_log [4]",
                                     "linear_attn.norm.weight [16]",
                                     "linear_attn.out_proj.weight [64, 64]",
                                     "post_attention_layernorm.weight [64]",
                                     "mlp.gate.weight [3, 64]",
                                     "mlp.experts.0.gate_proj.weight [32, 64]",
                                     "mlp.experts.0.up_proj.weight [32, 64]",
                                     "mlp.experts.0.down_proj.weight [64, 32]",
                                     "mlp.shared_expert.gate_proj.weight [48, 64]",
                                     "mlp.shared_expert.up_proj.weight [48, 64]",
                                     "mlp.shared_expert.down_proj.weight [64, 48]",
                                     "mlp.shared_expert_gate.weight [1, 64]",
                                 }));
  const std::vector<std::string> full = lines_of(config, 3);
  EXPECT_EQ(full[1], "self_attn.q_proj.weight [128, 64]") << "queries and gates";
  EXPECT_EQ(full[4], "self_attn.q_norm.weight [32]");
}

TEST(Qwen3Next, TheNewerSpellingIsTheSameModel) {
  const ModelConfig nested = parse_model_config(Nested().config()).value();
  const ModelConfig plain = parse_model_config(json_of(next())).value();
  EXPECT_EQ(nested.layers, plain.layers);
  EXPECT_EQ(nested.rotary_dim, plain.rotary_dim);
  EXPECT_EQ(nested.rope_theta, plain.rope_theta);
  EXPECT_EQ(nested.eos_token_ids, plain.eos_token_ids);
  EXPECT_TRUE(nested.router_renormalises);
  EXPECT_FALSE(nested.delta.by_key_head);
  const std::vector<std::string> lines = lines_of(nested, 0);
  EXPECT_EQ(lines[1], "linear_attn.in_proj_qkv.weight [128, 64]");
  EXPECT_EQ(lines[4], "linear_attn.in_proj_a.weight [4, 64]");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "mlp.experts.gate_up_proj [3, 64, 64]"), 1)
      << "unquantized experts lie in one tensor";
  std::vector<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(nested)) names.push_back(tensor.name);
  EXPECT_EQ(names.front(), "model.language_model.embed_tokens.weight");
  EXPECT_EQ(names.back(), "lm_head.weight");
  Nested text_only;
  text_only.outer["architectures"] = "[\"Qwen3_5MoeForCausalLM\"]";
  Fields flat = text_only.text;
  flat["architectures"] = "[\"Qwen3_5MoeForCausalLM\"]";
  EXPECT_EQ(parse_model_config(json_of(flat)).value().trunk, "model.");
}

TEST(Qwen3Next, ADenseQwen35HasOneFeedForwardALayer) {
  Nested model;
  model.outer["architectures"] = "[\"Qwen3_5ForConditionalGeneration\"]";
  for (const char* field : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                            "shared_expert_intermediate_size", "norm_topk_prob", "decoder_sparse_step"})
    model.text.erase(field);
  model.text["intermediate_size"] = "96";
  const ModelConfig config = parse_model_config(model.config()).value();
  EXPECT_EQ(config.dense_width, 96);
  EXPECT_EQ(config.num_local_experts, 0);
  const std::vector<std::string> lines = lines_of(config, 3);
  const std::vector<std::string> last(lines.end() - 4, lines.end());
  EXPECT_EQ(last,
            (std::vector<std::string>{"post_attention_layernorm.weight [64]", "mlp.gate_proj.weight [96, 64]",
                                      "mlp.up_proj.weight [96, 64]", "mlp.down_proj.weight [64, 96]"}));
  EXPECT_GT(active_bytes_per_token(config), 0);
  model.text["num_experts"] = "4";
  EXPECT_TRUE(contains(refusal(model.config()), "num_experts"));
  model.text.erase("num_experts");
  model.text.erase("intermediate_size");
  EXPECT_TRUE(contains(refusal(model.config()), "text_config.intermediate_size is missing"));
}

TEST(Qwen3Next, QuantizationMayBeToldAtEitherLevel) {
  const std::string fp8 =
      R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]})";
  for (const bool inside : {false, true}) {
    Nested model;
    (inside ? model.text : model.outer)["quantization_config"] = fp8;
    const ModelConfig config = parse_model_config(model.config()).value();
    std::map<WeightRole, TensorFormat> formats;
    visit_weights(config, [&](const Weight& weight) { formats[weight.role] = weight.format; });
    EXPECT_EQ(formats[WeightRole::expert_gate], TensorFormat::fp8_block);
    EXPECT_EQ(formats[WeightRole::delta_qkv], TensorFormat::fp8_block);
    EXPECT_EQ(formats[WeightRole::delta_b], TensorFormat::bf16);
    EXPECT_EQ(formats[WeightRole::shared_share], TensorFormat::bf16);
    EXPECT_EQ(formats[WeightRole::lm_head], TensorFormat::bf16);
  }
}

TEST(Qwen3Next, VisionAndDraftTensorsAreLeftAlone) {
  const ModelConfig config = parse_model_config(Nested().config()).value();
  EXPECT_EQ(left_alone(config, "model.visual.blocks.0.attn.qkv.weight"), "vision");
  EXPECT_EQ(left_alone(config, "mtp.fc.weight"), "multi-token prediction");
  EXPECT_EQ(left_alone(config, "model.language_model.layers.0.mtp.weight"), "");
}

TEST(Qwen3Next, ContradictionsAreRefusedByName) {
  EXPECT_TRUE(contains(refused_with("linear_conv_kernel_dim", ""), "linear_conv_kernel_dim is missing"))
      << refused_with("linear_conv_kernel_dim", "");
  EXPECT_TRUE(contains(refused_with("linear_conv_kernel_dim", "0"), "linear_conv_kernel_dim must be"));
  EXPECT_TRUE(contains(refused_with("linear_num_key_heads", "3"),
                       "linear_num_value_heads (4) must be a multiple of linear_num_key_heads (3)"));
  EXPECT_TRUE(contains(refused_with("linear_key_head_dim", "0"), "linear_key_head_dim"));
  EXPECT_TRUE(contains(refused_with("partial_rotary_factor", "0.1"), "partial_rotary_factor must leave"));
  EXPECT_TRUE(contains(refused_with("partial_rotary_factor", "1.5"), "partial_rotary_factor must leave"));
  EXPECT_TRUE(contains(refused_with("partial_rotary_factor", "1e300"), "partial_rotary_factor must leave"));
  EXPECT_TRUE(contains(refused_with("attn_output_gate", "false"), "attn_output_gate must be true"));
  EXPECT_TRUE(contains(refused_with("shared_expert_intermediate_size", "0"), "shared_expert_intermediate"));
  EXPECT_TRUE(contains(refused_with("full_attention_interval", "5"), "none of the 4 layers has attention"));
  EXPECT_TRUE(contains(refused_with("layer_types", R"(["linear_attention"])"), "num_hidden_layers names"));
  EXPECT_TRUE(contains(refused_with("layer_types", R"(["a","b","c","d"])"), "layer_types must be"));
  EXPECT_TRUE(contains(refused_with("mlp_only_layers", "[1]"), "mlp_only_layers must be empty"));
  EXPECT_TRUE(contains(refused_with("kv_lora_rank", "512"), "kv_lora_rank (512)"));
  EXPECT_TRUE(contains(refused_with("num_experts_per_tok", "4"), "num_experts_per_tok (4)"));
  EXPECT_TRUE(contains(refused_with("mamba_ssm_dtype", "\"bfloat16\""), "mamba_ssm_dtype must be"));
}

TEST(Qwen3Next, ContradictionsOfTheTextsFieldsSayWhereTheyAre) {
  Nested model;
  model.text["linear_conv_kernel_dim"] = "0";
  EXPECT_TRUE(contains(refusal(model.config()), "text_config.linear_conv_kernel_dim"));
  model = Nested();
  model.outer["tie_word_embeddings"] = "true";
  model.text["tie_word_embeddings"] = "false";
  EXPECT_TRUE(contains(refusal(model.config()), "contradict each other"));
  model = Nested();
  model.text["rope_parameters"] =
      R"({"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25,"mrope_section":[2,2,1]})";
  EXPECT_TRUE(contains(refusal(model.config()), "mrope_section must be"));
  model = Nested();
  model.text["norm_topk_prob"] = "false";
  EXPECT_TRUE(contains(refusal(model.config()), "norm_topk_prob must be true"));
}

}  // namespace
}  // namespace nibble
