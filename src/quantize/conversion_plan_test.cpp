#include "quantize/conversion_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

std::string bytes(std::size_t count) { return std::string(count, '\x3c'); }

struct Source {
  explicit Source(const std::vector<TestTensor>& tensors) {
    folder.write("model.safetensors", safetensors_file(tensors));
    weights.emplace(*WeightSource::open_as_stored(folder.path()));
  }

  TestFolder folder;
  std::optional<WeightSource> weights;
};

const std::vector<TestTensor> mixture = {
    {"lm_head.weight", "BF16", {64, 64}, bytes(8192)},
    {"l.0.norm.weight", "BF16", {64}, bytes(128)},
    {"l.0.mlp.experts.0.up_proj.weight", "BF16", {130, 64}, bytes(16640)},
    {"l.0.mlp.experts.0.gate_proj.weight", "F32", {130, 64}, bytes(33280)}};

ConversionOptions with_format(WeightFormat format) {
  ConversionOptions options;
  options.encode.format = format;
  return options;
}

// What a reader of the planned header finds is what the plan says.
void expect_consistent(const ConversionPlan& plan) {
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    std::string file = plan.files[f].header;
    ASSERT_LE(static_cast<std::int64_t>(file.size()), plan.files[f].bytes);
    ASSERT_EQ(file.size() % 8, 0u);
    file.resize(static_cast<std::size_t>(plan.files[f].bytes));
    const Result<SafetensorsHeader> header =
        parse_safetensors_header(std::as_bytes(std::span(file.data(), file.size())));
    ASSERT_TRUE(header.ok()) << header.status().message();
    for (const PlannedTensor& tensor : plan.tensors) {
      if (tensor.file != static_cast<int>(f)) continue;
      const auto entry = std::find_if(header->tensors.begin(), header->tensors.end(),
                                      [&](const SafetensorsEntry& each) { return each.name == tensor.name; });
      ASSERT_NE(entry, header->tensors.end()) << tensor.name;
      EXPECT_EQ(static_cast<std::int64_t>(entry->offset), tensor.offset);
      EXPECT_EQ(entry->shape, tensor.shape);
      EXPECT_EQ(entry->dtype, tensor.dtype);
      EXPECT_EQ(entry->offset % dtype_bytes(entry->dtype), 0u) << tensor.name;
    }
  }
}

TEST(ConversionPlan, HeadersSayWhereTensorsLieInEveryFormat) {
  const Source source(mixture);
  for (const WeightFormat format :
       {WeightFormat::mxfp4, WeightFormat::nvfp4, WeightFormat::fp8_block, WeightFormat::mxfp8}) {
    for (const std::int64_t shard : {std::int64_t{1}, std::int64_t{20000}, std::int64_t{1} << 40}) {
      ConversionOptions options = with_format(format);
      options.shard_bytes = shard;
      const Result<ConversionPlan> plan = plan_conversion(*source.weights, "{}", options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      expect_consistent(*plan);
      EXPECT_EQ(plan->index.empty(), plan->files.size() == 1);
    }
  }
}

TEST(ConversionPlan, ConfigKeepsItsTextAndNamesWhatWasNotConverted) {
  const Source source(mixture);
  const std::string config = "{\n  \"rms_norm_eps\": 1e-06,\n  \"note\": \"}\"\n}\n";
  const Result<ConversionPlan> plan =
      plan_conversion(*source.weights, config, with_format(WeightFormat::fp8_block));
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->config.starts_with("{\n  \"rms_norm_eps\": 1e-06,\n  \"note\": \"}\",\n"));
  const Result<JsonDocument> parsed = JsonDocument::parse(plan->config);
  ASSERT_TRUE(parsed.ok()) << plan->config;
  const JsonValue kept = *parsed->root().find("quantization_config")->find("modules_to_not_convert");
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ((*kept.elements().begin()).as_string(), "lm_head");
  EXPECT_TRUE(
      JsonDocument::parse(plan_conversion(*source.weights, "{ }", with_format(WeightFormat::nvfp4))->config)
          .ok());
}

TEST(ConversionPlan, GateAndUpShareAScaleGroup) {
  const Source source(mixture);
  const Result<ConversionPlan> plan =
      plan_conversion(*source.weights, "{}", with_format(WeightFormat::nvfp4));
  ASSERT_TRUE(plan.ok());
  std::vector<int> groups;
  for (const ConversionJob& job : plan->jobs) {
    if (job.quantize) groups.push_back(job.scale_group);
  }
  EXPECT_EQ(groups, (std::vector<int>{0, 0}));
  EXPECT_EQ(plan->scale_groups, 1);
}

TEST(ConversionPlan, TheRestHasAFormatOfItsOwn) {
  std::vector<TestTensor> tensors = mixture;
  // Columns that are no whole blocks of the experts' format.
  tensors.push_back({"l.0.self_attn.o_proj.weight", "BF16", {130, 60}, bytes(15600)});
  const Source source(tensors);
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    ConversionOptions options = with_format(format);
    options.rest = WeightFormat::fp8_block;
    const Result<ConversionPlan> plan = plan_conversion(*source.weights, "{}", options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    expect_consistent(*plan);
    std::string formats, made;
    for (const ConversionJob& job : plan->jobs) {
      if (!job.quantize) continue;
      formats += job.name + " " + std::string(weight_format_name(job.format)) + "\n";
    }
    for (const PlannedTensor& tensor : plan->tensors) {
      if (tensor.name.starts_with("l.0.self_attn."))
        made += tensor.name + " " + std::string(dtype_name(tensor.dtype)) + tensor.shape.to_string() + "\n";
    }
    const std::string name(weight_format_name(format));
    EXPECT_EQ(formats, "l.0.mlp.experts.0.up_proj " + name + "\nl.0.mlp.experts.0.gate_proj " + name +
                           "\nl.0.self_attn.o_proj fp8_block\n");
    EXPECT_EQ(made,
              "l.0.self_attn.o_proj.weight f8_e4m3[130, 60]\nl.0.self_attn.o_proj.weight_scale f32[2, 1]\n");
  }
}

TEST(ConversionPlan, ANullQuantizationConfigIsNone) {
  const Source source(mixture);
  for (const char* config : {R"({"quantization_config": null})",
                             "{\"a\": {\"quantization_config\": null}, \"b\": \"{\\\"\",\n"
                             " \"quantization_config\" :\n null,\n \"c\": [1]}",
                             R"({"b": "\"quantization_config\": null", "quantization_config":null})"}) {
    const Result<ConversionPlan> plan =
        plan_conversion(*source.weights, config, with_format(WeightFormat::nvfp4));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Result<JsonDocument> written = JsonDocument::parse(plan->config);
    ASSERT_TRUE(written.ok()) << plan->config;
    EXPECT_TRUE(written->root().find("quantization_config")->find("quant_method")->is_string());
  }
  const Status number =
      plan_conversion(*source.weights, R"({"quantization_config": 4})", with_format(WeightFormat::nvfp4))
          .status();
  EXPECT_NE(number.message().find("must be an object"), std::string::npos) << number.message();
}

TEST(ConversionPlan, QuantizedSourcesAreRefused) {
  const Source source(mixture);
  const Status status =
      plan_conversion(*source.weights, R"({"quantization_config": {"quant_method": "awq"}})",
                      with_format(WeightFormat::nvfp4))
          .status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("awq"), std::string::npos);
  const Source codes({{"a.weight", "U8", {64, 64}, bytes(4096)}});
  EXPECT_FALSE(plan_conversion(*codes.weights, "{}", with_format(WeightFormat::nvfp4)).ok());
}

}  // namespace
}  // namespace nibble
