#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/inspect.h"
#include "checkpoint/model_config.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

// hidden 64, 2 layers of which the first is dense of width 80; 2 heads of 24 + 16 and values of 32, by a
// latent of 32 and queries by one of 48; 8 experts in 4 groups, top-3 of 2 groups, of width 32, two shared.
class DeepSeek {
 public:
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"DeepseekV3ForCausalLM\"]"},
      {"vocab_size", "48"},
      {"hidden_size", "64"},
      {"num_hidden_layers", "2"},
      {"max_position_embeddings", "4096"},
      {"rms_norm_eps", "1e-6"},
      {"num_attention_heads", "2"},
      {"num_key_value_heads", "2"},
      {"q_lora_rank", "48"},
      {"kv_lora_rank", "32"},
      {"qk_nope_head_dim", "24"},
      {"qk_rope_head_dim", "16"},
      {"v_head_dim", "32"},
      {"rope_theta", "10000"},
      {"first_k_dense_replace", "1"},
      {"intermediate_size", "80"},
      {"n_routed_experts", "8"},
      {"num_experts_per_tok", "3"},
      {"moe_intermediate_size", "32"},
      {"n_shared_experts", "2"},
      {"n_group", "4"},
      {"topk_group", "2"},
      {"topk_method", "\"noaux_tc\""},
      {"scoring_func", "\"sigmoid\""},
      {"norm_topk_prob", "true"},
      {"routed_scaling_factor", "2.5"},
      {"num_nextn_predict_layers", "1"},
      {"eos_token_id", "40"},
  };

  std::string config() const {
    std::string text;
    for (const auto& [name, value] : fields) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + value;
    return text + "}";
  }
  Result<ModelConfig> read() const { return parse_model_config(config()); }
};

// An empty value takes the field away.
std::string refused_with(const std::map<std::string, std::string>& changes) {
  DeepSeek model;
  for (const auto& [field, json] : changes) {
    if (json.empty()) {
      model.fields.erase(field);
    } else {
      model.fields[field] = json;
    }
  }
  const Result<ModelConfig> read = model.read();
  EXPECT_FALSE(read.ok());
  if (read.ok()) return {};
  EXPECT_EQ(read.status().exit_code(), 3);
  return read.status().message();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(DeepSeekV3, ReadsThePublishedConfig) {
  const std::filesystem::path folder =
      std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/models/DeepSeek-V3";
  const ModelConfig config = read_model_config(folder).value();
  EXPECT_EQ(config.num_hidden_layers, 61);
  EXPECT_EQ(config.layers[2].feed_forward, FeedForward::dense);
  EXPECT_EQ(config.layers[3],
            (LayerDescription{.mixer = Mixer::latent, .feed_forward = FeedForward::experts}));
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.num_key_value_heads, 1) << "of the latent";
  EXPECT_EQ(layer_cache(config, 0).values, 576);
  EXPECT_EQ(config.intermediate_size, 2048) << "of one expert";
  EXPECT_EQ(config.dense_width, 18432);
  EXPECT_EQ(config.shared_width, 2048);
  EXPECT_EQ(config.router_groups, 8);
  EXPECT_EQ(config.router_scale, 2.5);
  EXPECT_EQ(config.yarn->attention_factor, 1) << "on cos and sin, where both factors are the same";
  EXPECT_NEAR(config.yarn->score_factor / std::sqrt(192.0), 0.13523, 1e-5);
  // Of 671 billion with the layer that drafts, which is left alone.
  std::int64_t values = 0, scales = 0;
  visit_weights(config, [&](const Weight& weight) {
    values += std::max<std::int64_t>(weight.own_experts, 1) * weight.shape.count();
    EXPECT_TRUE(weight.name != "lm_head" || weight.format == TensorFormat::bf16);
    visit_stored(weight, weight.own_experts > 0 ? weight.name_of(0) : weight.name,
                 [&](const ExpectedTensor& tensor) {
                   if (tensor.name != "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv") return;
                   EXPECT_EQ(tensor.shape, (Shape{5, 56})) << "576 rows end in a partial tile";
                   ++scales;
                 });
  });
  EXPECT_NEAR(static_cast<double>(values), 671.0e9, 0.05e9);
  EXPECT_EQ(scales, 1);
}

TEST(DeepSeekV3, ReadsThePublishedConfigsOfItsRelatives) {
  const auto billions = [](const char* name) {
    const ModelConfig config =
        read_model_config(std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/models" / name).value();
    std::int64_t values = 0;
    visit_weights(config, [&](const Weight& weight) {
      values += std::max<std::int64_t>(weight.own_experts, 1) * weight.shape.count();
    });
    return static_cast<double>(values) * 1e-9;
  };
  EXPECT_NEAR(billions("DeepSeek-R1"), 671.0, 0.1);
  EXPECT_NEAR(billions("Kimi-K2-Instruct"), 1026, 1);
  EXPECT_NEAR(billions("GLM-4.7-Flash"), 29.9, 0.1);
}

TEST(DeepSeekV3, HasItsTensorsInTheOrderOfTheForward) {
  const auto names_of = [](const DeepSeek& model, std::int64_t layer) {
    std::vector<std::string> names;
    visit_weights(model.read().value(), [&](const Weight& weight) {
      if (weight.layer == layer) names.push_back(weight.name.substr(15) + " " + weight.shape.to_string());
    });
    return names;
  };
  const std::vector<std::string> attention = {
      "input_layernorm.weight [64]",           "self_attn.q_a_proj [48, 64]",
      "self_attn.q_a_layernorm.weight [48]",   "self_attn.q_b_proj [80, 48]",
      "self_attn.kv_a_proj_with_mqa [48, 64]", "self_attn.kv_a_layernorm.weight [32]",
      "self_attn.kv_b_proj [112, 32]",         "self_attn.o_proj [64, 64]",
      "post_attention_layernorm.weight [64]"};
  std::vector<std::string> dense = attention, sparse = attention;
  for (const char* name : {"mlp.gate_proj [80, 64]", "mlp.up_proj [80, 64]", "mlp.down_proj [64, 80]"})
    dense.emplace_back(name);
  for (const char* name : {"mlp.gate [8, 64]", "mlp.gate.e_score_correction_bias [8]",
                           "mlp.shared_experts.gate_proj [64, 64]", "mlp.shared_experts.up_proj [64, 64]",
                           "mlp.shared_experts.down_proj [64, 64]", "mlp.experts.{}.gate_proj [32, 64]",
                           "mlp.experts.{}.up_proj [32, 64]", "mlp.experts.{}.down_proj [64, 32]"})
    sparse.emplace_back(name);
  EXPECT_EQ(names_of({}, 0), dense);
  EXPECT_EQ(names_of({}, 1), sparse);
  DeepSeek whole;
  whole.fields["q_lora_rank"] = "null";
  whole.fields["n_shared_experts"] = "null";
  const std::vector<std::string> names = names_of(whole, 1);
  EXPECT_EQ(names[1], "self_attn.q_proj [80, 64]") << "queries in one projection";
  EXPECT_EQ(names.size(), sparse.size() - 5);
}

TEST(DeepSeekV3, ReadsTheFieldsOfItsRelatives) {
  // GLM-4.7-Flash, and as transformers 5 writes it.
  DeepSeek glm;
  glm.fields["architectures"] = "[\"Glm4MoeLiteForCausalLM\"]";
  glm.fields["rope_scaling"] = "null";
  glm.fields["partial_rotary_factor"] = "1.0";
  const ModelConfig older = glm.read().value();
  EXPECT_FALSE(older.yarn.has_value());
  glm.fields.erase("first_k_dense_replace");
  glm.fields.erase("rope_theta");
  glm.fields.erase("partial_rotary_factor");
  glm.fields.erase("rope_scaling");
  glm.fields["mlp_layer_types"] = R"(["dense","sparse"])";
  glm.fields["rope_parameters"] = R"({"rope_type":"default","rope_theta":10000,"partial_rotary_factor":1.0})";
  EXPECT_EQ(glm.read().value().layers, older.layers);
  // Kimi-K2: a ramp of no width, one group.
  DeepSeek kimi;
  kimi.fields["n_group"] = kimi.fields["topk_group"] = "1";
  kimi.fields["rope_scaling"] =
      R"({"type":"yarn","factor":32,"beta_fast":1,"beta_slow":1,"mscale":1,"mscale_all_dim":1,)"
      R"("original_max_position_embeddings":4096})";
  EXPECT_NEAR(kimi.read().value().yarn->score_factor, std::pow(0.1 * std::log(32.0) + 1, 2), 1e-12);
  // Without mscale_all_dim cos and sin have the factor, and scores have none beside it.
  kimi.fields["rope_scaling"] =
      R"({"type":"yarn","factor":32,"original_max_position_embeddings":4096,"mscale":0.707})";
  EXPECT_EQ(kimi.read().value().yarn->score_factor, 1);
  EXPECT_NEAR(kimi.read().value().yarn->attention_factor, 0.1 * std::log(32.0) + 1, 1e-12);
}

TEST(DeepSeekV3, RefusesContradictionsInASentence) {
  EXPECT_EQ(refused_with({{"kv_lora_rank", "0"}}),
            "config.json: kv_lora_rank must be a whole number from 1 to 1048576, not 0");
  EXPECT_EQ(refused_with({{"kv_lora_rank", ""}}), "config.json: kv_lora_rank is missing");
  EXPECT_EQ(refused_with({{"n_group", "3"}}),
            "config.json: n_group (3) does not divide n_routed_experts (8): groups have equally many experts "
            "each");
  EXPECT_EQ(refused_with({{"topk_group", "5"}}),
            "config.json: topk_group (5) is above n_group (4): a token cannot choose from more groups than "
            "there are");
  EXPECT_EQ(refused_with({{"topk_group", "1"}}),
            "config.json: num_experts_per_tok (3) is above the 2 experts of the 1 groups that topk_group "
            "leaves open");
  EXPECT_TRUE(contains(refused_with({{"num_experts_per_tok", "9"}}), "above n_routed_experts (8)"));
  EXPECT_TRUE(contains(refused_with({{"num_key_value_heads", "1"}}), "must be num_attention_heads (2)"));
  EXPECT_TRUE(contains(refused_with({{"qk_rope_head_dim", "15"}}), "must be even"));
  EXPECT_TRUE(contains(refused_with({{"first_k_dense_replace", "2"}}), "none of the 2 layers has experts"));
  EXPECT_TRUE(contains(refused_with({{"first_k_dense_replace", ""}}), "first_k_dense_replace is missing"));
  EXPECT_TRUE(contains(refused_with({{"mlp_layer_types", R"(["dense"])"}}), "num_hidden_layers names"));
  EXPECT_TRUE(contains(refused_with({{"scoring_func", "\"softmax\""}}), "scoring_func must be \"sigmoid\""));
  EXPECT_TRUE(contains(refused_with({{"topk_method", "\"greedy\""}}), "topk_method must be \"noaux_tc\""));
  EXPECT_TRUE(contains(refused_with({{"moe_layer_freq", "2"}}), "moe_layer_freq (2) must be 1"));
  EXPECT_TRUE(contains(refused_with({{"rope_interleave", "false"}}), "rope_interleave must be true"));
  EXPECT_TRUE(contains(refused_with({{"index_topk", "2048"}}), "index_topk (2048) is no field"));
  EXPECT_TRUE(contains(refused_with({{"partial_rotary_factor", "0.5"}}), "must be 1: qk_rope_head_dim"));
  EXPECT_TRUE(contains(
      refused_with({{"rope_scaling",
                     R"({"type":"yarn","factor":4,"original_max_position_embeddings":64,"mscale":-1})"}}),
      "rope_scaling.mscale must be a number from 0"));
  EXPECT_TRUE(contains(refused_with({{"quantization_config", R"({"quant_method":"mxfp4"})"}}),
                       "mxfp4-pack-quantized"));
}

// ---- a checkpoint
// --------------------------------------------------------------------------------------------

TestTensor test_tensor(const ExpectedTensor& expected) {
  const bool wide = expected.dtype == DType::f32;
  TestTensor made{.name = expected.name};
  made.dtype = wide ? "F32" : expected.dtype == DType::f8_e4m3 ? "F8_E4M3" : "BF16";
  const std::string pattern = wide                               ? std::string("\0\0\x80\x3f", 4)
                              : expected.dtype == DType::f8_e4m3 ? std::string("\x38", 1)
                                                                 : std::string("\x80\x3f", 2);
  for (const std::int64_t extent : expected.shape.extents()) made.shape.push_back(extent);
  for (std::int64_t i = 0; i < expected.shape.count(); ++i) made.bytes += pattern;
  return made;
}

const std::string int4_groups =
    R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"group_0":{"targets":["Linear"],"weights":)"
    R"({"num_bits":4,"group_size":32,"type":"int","symmetric":true,"actorder":null}}},"ignore":["lm_head",)"
    R"("re:.*self_attn.*","re:.*shared_experts.*","re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})";

TEST(DeepSeekV3, KimisExpertsAreInIntegersOfFourBits) {
  DeepSeek model;
  model.fields["quantization_config"] = int4_groups;
  const ModelConfig config = model.read().value();
  std::map<WeightRole, TensorFormat> formats;
  visit_weights(config, [&](const Weight& weight) { formats[weight.role] = weight.format; });
  EXPECT_EQ(formats[WeightRole::expert_down], TensorFormat::int4_packed);
  for (const WeightRole role : {WeightRole::dense_gate, WeightRole::shared_up, WeightRole::latent_heads,
                                WeightRole::lm_head, WeightRole::router})
    EXPECT_EQ(formats[role], TensorFormat::bf16);
  std::vector<std::string> stored;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.name.find("layers.1.mlp.experts.7.down_proj") != tensor.name.npos)
      stored.push_back(tensor.name.substr(tensor.name.find("down_proj")) + " " +
                       std::string(dtype_name(tensor.dtype)) + " " + tensor.shape.to_string());
  }
  EXPECT_EQ(stored, (std::vector<std::string>{"down_proj.weight_packed i32 [64, 4]",
                                              "down_proj.weight_scale bf16 [64, 1]"}));
  EXPECT_TRUE(contains(refused_with({{"quantization_config", int4_groups}, {"moe_intermediate_size", "48"}}),
                       "has 48 columns, which are not whole blocks of 32, as int4 has them"));
}

TEST(DeepSeekV3, KimiK25KeepsTheTextInAConfigOfItsOwn) {
  DeepSeek model;
  model.fields["quantization_config"] = int4_groups;
  const std::string outer =
      R"({"architectures":["KimiK25ForConditionalGeneration"],"eos_token_id":41,"text_config":)";
  const ModelConfig config = parse_model_config(outer + model.config() + "}").value();
  EXPECT_EQ(config.eos_token_ids, (std::vector<TokenId>{40, 41}));
  std::vector<std::string> names;
  visit_weights(config, [&](const Weight& weight) { names.push_back(weight.name); });
  EXPECT_EQ(names.front(), "language_model.model.embed_tokens");
  EXPECT_EQ(names.back(), "language_model.lm_head");
  EXPECT_EQ(left_alone(config, "vision_tower.encoder.blocks.0.wqkv.weight"), "vision");
  EXPECT_EQ(left_alone(config, "mm_projector.linear_1.bias"), "vision");
  EXPECT_EQ(left_alone(model.read().value(), "vision_tower.encoder.blocks.0.wqkv.weight"), "");
  EXPECT_TRUE(
      contains(parse_model_config(R"({"architectures":["KimiK25ForConditionalGeneration"],"eos_token_id":1})")
                   .status()
                   .message(),
               "text_config is missing"));
}

TEST(DeepSeekV3, LayersThatDraftAreLeftAloneAndSaid) {
  DeepSeek model;
  model.fields["quantization_config"] = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
  const std::vector<ExpectedTensor> expected = expected_tensors(model.read().value());
  std::vector<TestTensor> tensors;
  for (ExpectedTensor each : expected) {
    if (each.name.ends_with("e_score_correction_bias")) each.dtype = DType::f32;
    tensors.push_back(test_tensor(each));
  }
  for (const char* name : {"model.layers.2.eh_proj.weight", "model.layers.2.shared_head.norm.weight"})
    tensors.push_back(test_tensor({.name = name, .shape = {4}}));
  tensors.push_back(test_tensor({.name = "model.layers.1.self_attn.rotary_emb.inv_freq", .shape = {8}}));
  TestFolder folder;
  folder.write("config.json", model.config());
  folder.write("model.safetensors", safetensors_file(tensors));
  const Inspection report = inspect_model(folder.path());
  EXPECT_TRUE(report.problems.empty()) << report.problems.first().message();
  ASSERT_EQ(report.left_alone.size(), 2u);
  for (const LeftAlone& each : report.left_alone)
    EXPECT_EQ(each.tensors, each.what == "multi-token prediction" ? 2 : 1) << each.what;

  model.fields["num_nextn_predict_layers"] = "0";
  folder.write("config.json", model.config());
  EXPECT_TRUE(contains(inspect_model(folder.path()).problems.first().message(), "is extra"));
}

}  // namespace
}  // namespace nibble
