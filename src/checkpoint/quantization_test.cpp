#include "checkpoint/quantization.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/qwen3_moe_test_util.h"

namespace nibble {
namespace {

TensorFormat format_of(const Qwen& model, std::string_view module) {
  return model.read().value().quantization.format_of(module).format;
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
  EXPECT_TRUE(contains(refused(R"({"quant_method":"modelopt","quant_algo":"W4A8_AWQ"})"), "\"W4A8_AWQ\""));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})"),
                       "config_groups is missing"));
  EXPECT_TRUE(contains(
      refused(
          R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["re:a\\b"]})"),
      "which has \\b"));
  EXPECT_TRUE(contains(refused(R"({"quant_method":"mxfp4"})"), "mxfp4-pack-quantized"));
}

// ---- compressed-tensors, by groups
// --------------------------------------------------------------------------------------------

const std::string nvfp4_weights =
    R"("weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16})";
const std::string mxfp4_weights =
    R"("weights":{"num_bits":4,"type":"float","strategy":"group","group_size":32})";
const std::string fp8_weights =
    R"("weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]})";

std::string group(const std::string& targets, const std::string& weights, const std::string& format = {}) {
  return "{\"targets\":[" + targets + "]," + weights +
         (format.empty() ? "" : ",\"format\":\"" + format + "\"") + "}";
}
std::string groups(const std::vector<std::string>& all, const std::string& format = "mixed-precision",
                   const std::string& ignore = "\"lm_head\"") {
  std::string text = R"({"quant_method":"compressed-tensors","format":")" + format + R"(","ignore":[)" +
                     ignore + R"(],"config_groups":{)";
  for (std::size_t i = 0; i < all.size(); ++i)
    text += (i == 0 ? "" : ",") + std::string("\"group_") + std::to_string(i) + "\":" + all[i];
  return text + "}}";
}
Qwen with(const std::string& quantization) {
  Qwen model;
  model.fields["quantization_config"] = quantization;
  return model;
}
std::string refused(const std::string& quantization) { return with(quantization).refused(); }

const std::string experts = R"("re:.*mlp\\.experts\\..*")", attention = R"("re:.*self_attn\\.[qkvo]_proj$")";
const std::string layer = "model.layers.0.";

TEST(Groups, AFp8BlockHasItsScalesUnderTheirPlainName) {
  const Qwen model =
      with(groups({group(R"("Linear")", fp8_weights)}, "float-quantized", R"("lm_head","re:.*mlp.gate$")"));
  const QuantizationScheme scheme = model.read().value().quantization;
  EXPECT_EQ(scheme.format_of(layer + "self_attn.q_proj"),
            (ModuleFormat{TensorFormat::fp8_block, Fp8Scales::plain}));
  EXPECT_EQ(scheme.format_of("lm_head"), ModuleFormat{});
  std::vector<std::string> scales;
  for (const ExpectedTensor& tensor : expected_tensors(model.read().value())) {
    if (contains(tensor.name, ".q_proj.") || contains(tensor.name, ".0.up_proj."))
      scales.push_back(tensor.name + tensor.shape.to_string());
  }
  EXPECT_EQ(scales, (std::vector<std::string>{layer + "self_attn.q_proj.weight[64, 64]",
                                              layer + "self_attn.q_proj.weight_scale[1, 1]",
                                              layer + "mlp.experts.0.up_proj.weight[32, 64]",
                                              layer + "mlp.experts.0.up_proj.weight_scale[1, 1]"}));
}

TEST(Groups, EachHasItsFormatBySayingItOrByItsWeights) {
  for (const bool said : {true, false}) {
    const Qwen model = with(groups({group(experts, nvfp4_weights, said ? "nvfp4-pack-quantized" : ""),
                                    group(attention, fp8_weights, said ? "float-quantized" : "")}));
    EXPECT_EQ(format_of(model, layer + "mlp.experts.1.up_proj"), TensorFormat::nvfp4_packed);
    EXPECT_EQ(format_of(model, layer + "self_attn.o_proj"), TensorFormat::fp8_block);
    EXPECT_EQ(format_of(model, "lm_head"), TensorFormat::bf16);
    EXPECT_EQ(format_of(model, layer + "mlp.shared"), TensorFormat::bf16) << "no group has it";
  }
  const Qwen mxfp4 = with(groups({group(experts, mxfp4_weights), group(R"("Linear")", fp8_weights)}));
  EXPECT_EQ(format_of(mxfp4, layer + "mlp.experts.1.up_proj"), TensorFormat::mxfp4_packed);
  EXPECT_EQ(format_of(mxfp4, layer + "self_attn.o_proj"), TensorFormat::fp8_block);
}

TEST(Groups, ANameGoesBeforeAnExpressionAndThatBeforeLinearAndIgnoreBeforeAll) {
  const std::string q = layer + "self_attn.q_proj", k = layer + "self_attn.k_proj",
                    v = layer + "self_attn.v_proj";
  // In whichever order the groups come.
  const std::string by_name = group("\"" + q + "\",\"" + v + "\"", nvfp4_weights),
                    by_expression = group(attention, mxfp4_weights),
                    by_class = group(R"("Linear")", fp8_weights);
  for (const auto& order :
       {std::vector{by_name, by_expression, by_class}, {by_class, by_expression, by_name}}) {
    const Qwen model = with(groups(order, "mixed-precision", "\"" + v + "\""));
    EXPECT_EQ(format_of(model, q), TensorFormat::nvfp4_packed);
    EXPECT_EQ(format_of(model, k), TensorFormat::mxfp4_packed);
    EXPECT_EQ(format_of(model, v), TensorFormat::bf16);
    EXPECT_EQ(format_of(model, "lm_head"), TensorFormat::fp8_block);
  }
}

TEST(Groups, WhatGroupsCannotSayIsRefusedByItsName) {
  const std::string where = "config.json: quantization_config.config_groups.group_0";
  EXPECT_EQ(refused(groups({group(experts, nvfp4_weights, "int-quantized")})),
            where +
                ".format \"int-quantized\" of compressed-tensors is not supported; \"nvfp4-pack-quantized\", "
                "\"mxfp4-pack-quantized\", \"pack-quantized\", \"float-quantized\" and groups of those in "
                "\"mixed-precision\" are");
  EXPECT_TRUE(contains(refused(groups({group(experts, nvfp4_weights)}, "marlin-24")),
                       "quantization_config.format \"marlin-24\" of compressed-tensors is not supported"));
  EXPECT_TRUE(contains(refused(groups({group(experts, nvfp4_weights, "mixed-precision")})),
                       "group_0.format \"mixed-precision\""));
  EXPECT_EQ(refused(groups({group(experts, R"("weights":{"num_bits":6,"type":"float","group_size":32})")})),
            where +
                " has no format, and its weights are \"float\" of 6 bits in groups of 32; float of 4 bits in "
                "groups of 16 or 32, int of 4 bits in groups of 32 and float of 8 bits are read");
  EXPECT_EQ(
      refused(groups({group(experts, mxfp4_weights, "nvfp4-pack-quantized")})),
      where +
          ".weights are \"float\" of 4 bits in groups of 32, and nvfp4-pack-quantized has \"float\" of 4 "
          "bits in groups of 16");
  EXPECT_TRUE(
      contains(refused(groups({group(experts, R"("weights":{"num_bits":4,"type":"float"})")})),
               "its weights are \"float\" of 4 bits without a group_size; float of 4 bits in groups"));
  EXPECT_EQ(refused(groups({R"({"targets":["Linear"]})"})), where + ".weights is missing");
  EXPECT_EQ(refused(groups({"{" + fp8_weights + "}"})), where + ".targets is missing");
  EXPECT_EQ(refused(groups({group("3", fp8_weights)})), where + ".targets must be a list of names, not 3");
  EXPECT_EQ(refused(groups({R"(["Linear"])"})), where + " must be an object, not an array");
  EXPECT_EQ(
      refused(groups({})),
      "config.json: quantization_config.config_groups must be an object of 1 to 64 groups, not an object");
  EXPECT_EQ(
      refused(groups({group(R"-("re:a(?<=b)")-", fp8_weights)})),
      where +
          ".targets has the expression \"re:a(?<=b)\", which has (?, which is read at its begin alone, as "
          "(?=..) and (?!..), or as (?:..); list the modules by name");
}

TEST(Groups, Fp8HasBlocksOf128) {
  const auto with_block = [](const std::string& fields) {
    return refused(groups({group(R"("Linear")", R"("weights":{"num_bits":8,"type":"float",)" + fields + "}")},
                          "float-quantized"));
  };
  const std::string where = "config.json: quantization_config.config_groups.group_0.weights.";
  EXPECT_EQ(with_block(R"("strategy":"block")"), where + "block_structure is missing");
  EXPECT_EQ(with_block(R"("strategy":"block","block_structure":[64,128])"),
            where + "block_structure must be [128, 128], not an array");
  EXPECT_EQ(with_block(R"("strategy":"group")"),
            where +
                "strategy \"group\" is not supported for FP8; \"block\" with block_structure [128, 128], "
                "\"channel\" and \"tensor\" are");
  EXPECT_EQ(with_block(R"("x":1)"), where + "strategy is missing");
}

TEST(Groups, OneModuleCannotHaveTwoFormats) {
  const std::string name = "\"" + layer + "self_attn.q_proj\"";
  for (const std::string& target : {std::string(R"("Linear")"), name}) {
    EXPECT_EQ(refused(groups({group(target, nvfp4_weights), group(target, fp8_weights)})),
              "config.json: quantization_config.config_groups has the target " + target +
                  " in two groups of different formats; it must be in one of them");
    EXPECT_TRUE(with(groups({group(target, fp8_weights), group(target, fp8_weights)})).read().ok());
  }
  const std::string wide = R"("re:.*proj$")";
  EXPECT_EQ(
      refused(groups({group(experts, mxfp4_weights), group(wide, fp8_weights)})),
      "config.json: quantization_config.config_groups gives \"" + layer +
          "mlp.experts.0.gate_proj\" the format mxfp4 by \"re:.*mlp\\\\.experts\\\\..*\" and fp8_block by "
          "\"re:.*proj$\"; an expression must leave out what another group has, or name the module in one");
  EXPECT_TRUE(
      with(groups({group(experts, mxfp4_weights), group(R"-("re:(?!.*experts).*proj$")-", fp8_weights)}))
          .read()
          .ok());
  EXPECT_TRUE(with(groups({group(experts, mxfp4_weights), group(wide, fp8_weights)}, "mixed-precision",
                          R"("re:.*experts")"))
                  .read()
                  .ok())
      << "what stays as it is is nobody's";
}

TEST(Groups, TheirTensorsAreTakenAndTheirScalesHeldToTheirShapes) {
  const std::string mixed = groups({group(experts, mxfp4_weights), group(attention, fp8_weights)});
  EXPECT_TRUE(Written(mixed).check().ok()) << Written(mixed).check().message();
  const std::string name = layer + "self_attn.o_proj.weight_scale";
  const auto refused_tensors = [&](const std::function<void(Written&)>& change) {
    Written written(mixed);
    change(written);
    const Status status = written.check();
    EXPECT_EQ(status.exit_code(), 3);
    return status.message();
  };
  EXPECT_EQ(refused_tensors([&](Written& written) {
              std::erase_if(written.tensors, [&](const TestTensor& each) { return each.name == name; });
            }),
            "tensor \"" + name + "\" is missing");
  EXPECT_EQ(
      refused_tensors([&](Written& written) {
        written.tensor(name).shape = {1, 2};
        written.tensor(name).bytes += written.tensor(name).bytes;
      }),
      "tensor \"" + name + "\" of model.safetensors has the shape [1, 2]; the configuration asks for [1, 1]");
  EXPECT_TRUE(contains(
      refused_tensors([&](Written& written) { written.tensor(name).bytes = std::string("\0\0\xc0\x7f", 4); }),
      name + "\" of model.safetensors holds 1 scales that are NaN, zero"));
}

// ---- FP8 under other names
// --------------------------------------------------------------------------------------------

const std::string o_scale = layer + "self_attn.o_proj.weight_scale";

std::string modelopt(const std::string& algorithm) {
  return R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","ignore":["lm_head"],"quantized_layers":{
      "model.layers.0.mlp.experts":{"quant_algo":"NVFP4","group_size":16},
      "model.layers.0.self_attn":{"quant_algo":")" +
         algorithm + R"("},"model.layers.0.self_attn.q_proj":{"quant_algo":"NVFP4"}}})";
}

TEST(ModelOpt, NamesModulesOrOnesThatTheyAreIn) {
  const QuantizationScheme scheme = with(modelopt("FP8_PB_WO")).read().value().quantization;
  EXPECT_EQ(scheme.format_of(layer + "mlp.experts.1.up_proj"), ModuleFormat{TensorFormat::nvfp4});
  EXPECT_EQ(scheme.format_of(layer + "self_attn.o_proj"),
            (ModuleFormat{TensorFormat::fp8_block, Fp8Scales::either}));
  EXPECT_EQ(scheme.format_of(layer + "self_attn.q_proj"), ModuleFormat{TensorFormat::nvfp4}) << "the nearest";
  EXPECT_EQ(scheme.format_of("lm_head"), ModuleFormat{});
  EXPECT_EQ(refused(R"({"quant_method":"modelopt","quant_algo":"MXFP8"})"),
            "config.json: quantization_config has quant_algo \"MXFP8\", which is not supported; \"NVFP4\", "
            "\"W4A16_NVFP4\", \"FP8_PB_WO\" (blocks of 128 x 128), \"FP8_PER_CHANNEL_PER_TOKEN\" and \"FP8\" "
            "(one scale a matrix) are");
  EXPECT_TRUE(contains(refused(R"({"quant_method":"modelopt","quant_algo":"FP8_PB_WO","group_size":64})"),
                       "group_size must be 128, not 64"));
}

TEST(ModelOpt, BlocksOfFp8ComeUnderEitherNameAndInEitherShape) {
  for (const char* algorithm : {"FP8_PB_WO", "fp8_pb_wo", "FP8_BLOCK_SCALES"}) {
    Written written(modelopt(algorithm));
    EXPECT_TRUE(written.check().ok()) << written.check().message();
    written.tensor(o_scale).shape = {1, 1, 1, 1};
    EXPECT_TRUE(written.check().ok()) << written.check().message();
    written.tensor(o_scale).shape = {1, 1, 1};
    EXPECT_EQ(written.check().message(),
              "tensor \"" + o_scale +
                  "\" of model.safetensors has the shape [1, 1, 1]; the configuration asks for [1, 1]");
    written.tensor(o_scale) = {
        .name = o_scale + "_inv", .dtype = "BF16", .shape = {1, 1}, .bytes = "\x80\x3f"};
    EXPECT_TRUE(written.check().ok()) << written.check().message();
    written.tensor(o_scale + "_inv").bytes = std::string(2, '\0');
    EXPECT_TRUE(contains(written.check().message(),
                         o_scale + "_inv\" of model.safetensors holds 1 scales that are NaN, zero"));
    std::erase_if(written.tensors, [](const TestTensor& each) { return each.name == o_scale + "_inv"; });
    EXPECT_EQ(written.check().message(), "tensor \"" + o_scale + "\" is missing");
  }
}

TEST(Fp8, OneScaleOfAMatrixBecomesThatOfEachOfItsTiles) {
  for (const std::string& config :
       {modelopt("FP8"),
        groups({group(attention, R"("weights":{"num_bits":8,"type":"float","strategy":"tensor"})"),
                group(experts, mxfp4_weights)})}) {
    Written wide(config, {{"head_dim", "256"}});  // o_proj is [64, 512]
    TestTensor& scale = wide.tensor(o_scale);
    scale.bytes = std::string("\0\0\x20\x40", 4);
    scale.shape = {};
    wide.tensors.push_back(
        {.name = layer + "self_attn.o_proj.input_scale", .dtype = "F32", .bytes = scale.bytes});
    ASSERT_TRUE(wide.check().ok()) << wide.check().message();
    const ModelConfig read = read_model_config(wide.folder.path()).value();
    WeightSource source = WeightSource::open(wide.folder.path()).value();
    ASSERT_TRUE(spread_scales(read, source).ok());
    const ConstTensor tiles = source.required(o_scale, DType::f32, {1, 4}).value();
    for (const float each : tiles.as<float>()) EXPECT_EQ(each, 2.5f);
    EXPECT_TRUE(wide.check().ok());
    wide.tensor(o_scale).shape = {2};
    wide.tensor(o_scale).bytes += wide.tensor(o_scale).bytes;
    EXPECT_EQ(
        wide.check().message(),
        "tensor \"" + o_scale + "\" of model.safetensors has the shape [2]; the configuration asks for [1]");
  }
}

TEST(Fp8, ScalesOfRowsComeFromEveryWriterInEitherShapeAndType) {
  const std::string by_channel =
      groups({group(R"("Linear")", R"("weights":{"num_bits":8,"type":"float","strategy":"channel"})")},
             "float-quantized", R"("lm_head","re:.*mlp.gate$")");
  for (const std::string& config :
       {by_channel, modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
        std::string(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0})")}) {
    Written written(config);
    EXPECT_EQ(format_of(written.model, layer + "self_attn.o_proj"), TensorFormat::fp8_row);
    EXPECT_EQ(format_of(written.model, "lm_head"), TensorFormat::bf16);
    EXPECT_EQ(written.tensor(o_scale).shape, (std::vector<std::int64_t>{64, 1}));
    EXPECT_TRUE(written.check().ok()) << written.check().message();
    written.tensor(o_scale).shape = {64};
    EXPECT_TRUE(written.check().ok()) << written.check().message();
    std::string narrow;
    for (int row = 0; row < 64; ++row) narrow += "\x80\x3f";
    written.tensor(o_scale).dtype = "BF16";
    written.tensor(o_scale).bytes = narrow;
    EXPECT_TRUE(written.check().ok()) << written.check().message();
  }
}

TEST(Fp8, ScalesOfRowsThatAreNoneAreRefusedByTheirTensor) {
  const std::string config =
      groups({group(R"("Linear")", R"("weights":{"num_bits":8,"type":"float","strategy":"channel"})")},
             "float-quantized", R"("lm_head","re:.*mlp.gate$")");
  const std::string scale = layer + "mlp.experts.1.up_proj.weight_scale";
  const auto refused_scales = [&](const std::function<void(TestTensor&)>& change) {
    Written written(config);
    change(written.tensor(scale));
    const Status status = written.check();
    EXPECT_EQ(status.exit_code(), 3);
    return status.message();
  };
  for (const auto& shape : {std::vector<std::int64_t>{1, 32}, {32, 1, 1}}) {
    EXPECT_TRUE(contains(refused_scales([&](TestTensor& tensor) { tensor.shape = shape; }),
                         "tensor \"" + scale + "\" of model.safetensors has the shape "));
  }
  EXPECT_EQ(
      refused_scales([](TestTensor& tensor) {
        tensor.shape = {1};
        tensor.bytes.resize(4);
      }),
      "tensor \"" + scale + "\" of model.safetensors has the shape [1]; the configuration asks for [32, 1]");
  for (const std::string& bytes :
       {std::string("\0\0\xc0\x7f", 4), std::string(4, '\0'), std::string("\0\0\x80\xbf", 4)}) {
    EXPECT_EQ(
        refused_scales([&](TestTensor& tensor) { tensor.bytes.replace(3 * 4, 4, bytes); }),
        "tensor \"" + scale +
            "\" of model.safetensors holds 1 scales that are NaN, zero, infinite or negative, the first at "
            "[3, 0]");
  }
  Written without(config);
  std::erase_if(without.tensors, [&](const TestTensor& each) { return each.name == scale; });
  EXPECT_EQ(without.check().message(), "tensor \"" + scale + "\" is missing");
  EXPECT_EQ(without.check().exit_code(), 3);
}

TEST(Groups, ATargetThatNamesNoModuleIsFoundByTheTensorsThatItLeavesOut) {
  const std::string text = groups({group(experts, mxfp4_weights), group(attention, fp8_weights)});
  Written written(text);
  written.model.fields["quantization_config"] = groups(
      {group(experts, mxfp4_weights), group(R"("model.layers.0.self_attention.q_proj")", fp8_weights)});
  const Status status = written.check();
  EXPECT_EQ(status.exit_code(), 3);
  EXPECT_EQ(status.message(),
            "tensor \"" + layer + "self_attn.q_proj.weight\" of model.safetensors is f8_e4m3, not bf16");
}

TEST(Groups, ExpertsOfALayerHaveOneFormat) {
  EXPECT_EQ(
      refused(groups({group(R"("re:.*gate_proj$")", mxfp4_weights), group(R"("Linear")", fp8_weights)})),
      "config.json: quantization_config gives \"" + layer +
          "mlp.experts.0.up_proj\" the format fp8_block and \"" + layer +
          "mlp.experts.0.gate_proj\" mxfp4; the experts of a layer must have one format");
  EXPECT_EQ(refused(groups(
                {group(R"("re:.*gate_proj$")", fp8_weights),
                 group(R"("Linear")", R"("weights":{"num_bits":8,"type":"float","strategy":"channel"})")})),
            "config.json: quantization_config gives \"" + layer +
                "mlp.experts.0.up_proj\" the format fp8_row and \"" + layer +
                "mlp.experts.0.gate_proj\" fp8_block; the experts of a layer must have one format");
}

}  // namespace
}  // namespace nibble
