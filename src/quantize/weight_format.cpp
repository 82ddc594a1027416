#include "quantize/weight_format.h"

#include "base/check.h"
#include "base/json_writer.h"
#include "formats/fp8_block.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

void write_names(JsonWriter& json, const std::vector<std::string>& names) {
  json.begin_array();
  for (const std::string& name : names) json.value(name);
  json.end_array();
}

std::string gpt_oss_config() {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("modules_to_not_convert");
  write_names(json,
              {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"});
  json.member("quant_method", "mxfp4").end_object();
  return text;
}

std::string fp8_config(const std::vector<std::string>& kept) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("activation_scheme", "dynamic").member("fmt", "e4m3");
  json.member("quant_method", "fp8").key("modules_to_not_convert");
  write_names(json, kept);
  json.key("weight_block_size").begin_array().value(fp8_tile).value(fp8_tile).end_array().end_object();
  return text;
}

struct Scheme {
  std::string_view format, strategy, scale_dtype;
  int bits, group;  // group 0: tiles of 128 x 128 instead
};
Scheme scheme_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::nvfp4: return {"nvfp4-pack-quantized", "tensor_group", "torch.float8_e4m3fn", 4, 16};
    case WeightFormat::mxfp8: return {"mxfp8-quantized", "group", "torch.uint8", 8, 32};
    case WeightFormat::fp8_block: return {"float-quantized", "block", {}, 8, 0};
    case WeightFormat::mxfp4: break;
  }
  return {"mxfp4-pack-quantized", "group", "torch.uint8", 4, 32};
}

struct Group {
  WeightFormat format;
  std::string target;
};

void write_group(JsonWriter& json, const Group& group) {
  const Scheme scheme = scheme_of(group.format);
  json.begin_object().member("format", scheme.format).key("input_activations");
  if (group.format == WeightFormat::fp8_block) {
    // As compressed-tensors' preset FP8_BLOCK has them; nibble multiplies inputs as they are.
    json.begin_object().member("dynamic", true).member("group_size", fp8_tile).member("num_bits", 8);
    json.member("strategy", "group").member("symmetric", true).member("type", "float").end_object();
  } else {
    json.null();
  }
  json.key("output_activations").null().key("targets");
  write_names(json, {group.target});
  json.key("weights").begin_object();
  if (scheme.group == 0)
    json.key("block_structure").begin_array().value(fp8_tile).value(fp8_tile).end_array();
  json.member("dynamic", false);
  if (scheme.group > 0) json.member("group_size", scheme.group);
  json.member("num_bits", scheme.bits);
  if (!scheme.scale_dtype.empty()) json.member("scale_dtype", scheme.scale_dtype);
  json.member("strategy", scheme.strategy).member("symmetric", true).member("type", "float");
  if (!scheme.scale_dtype.empty()) json.member("zp_dtype", scheme.scale_dtype);
  json.end_object().end_object();
}

std::string compressed_tensors_config(const std::vector<Group>& groups,
                                      const std::vector<std::string>& kept) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("config_groups").begin_object();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    json.key("group_" + std::to_string(i));
    write_group(json, groups[i]);
  }
  json.end_object();
  json.member("format", groups.size() > 1 ? "mixed-precision" : scheme_of(groups[0].format).format);
  json.key("ignore");
  write_names(json, kept);
  json.key("kv_cache_scheme").null().member("quant_method", "compressed-tensors");
  json.member("quantization_status", "compressed").end_object();
  return text;
}

}  // namespace

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::mxfp4: return "mxfp4";
    case WeightFormat::nvfp4: return "nvfp4";
    case WeightFormat::fp8_block: return "fp8_block";
    case WeightFormat::mxfp8: return "mxfp8";
  }
  return "";
}

std::int64_t column_multiple(WeightFormat format) {
  switch (format) {
    case WeightFormat::mxfp4: return mxfp4_block;
    case WeightFormat::nvfp4: return nvfp4_block;
    case WeightFormat::fp8_block: return 1;
    case WeightFormat::mxfp8: return mxfp8_block;
  }
  return 1;
}

std::int64_t rows_together(WeightFormat format) { return format == WeightFormat::fp8_block ? fp8_tile : 1; }

std::int64_t code_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  const bool half = format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4;
  return half ? rows * cols / 2 : rows * cols;
}

std::int64_t scale_bytes_of(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  if (format != WeightFormat::fp8_block) return rows * cols / column_multiple(format);
  return fp8_tiles(rows) * fp8_tiles(cols) * static_cast<std::int64_t>(sizeof(float));
}

MatrixPart codes_part(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  const bool half = format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4;
  if (half) return {".weight_packed", DType::u8, {rows, cols / 2}};
  return {".weight", DType::f8_e4m3, {rows, cols}};
}

MatrixPart scales_part(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  switch (format) {
    case WeightFormat::mxfp4:
    case WeightFormat::mxfp8: return {".weight_scale", DType::u8, {rows, cols / 32}};
    case WeightFormat::nvfp4: return {".weight_scale", DType::f8_e4m3, {rows, cols / nvfp4_block}};
    case WeightFormat::fp8_block: break;
  }
  return {".weight_scale_inv", DType::f32, {fp8_tiles(rows), fp8_tiles(cols)}};
}

std::string quantization_config(WeightFormat format, bool gpt_oss_experts,
                                const std::vector<std::string>& kept) {
  if (gpt_oss_experts) {
    NIBBLE_CHECK(format == WeightFormat::mxfp4);
    return gpt_oss_config();
  }
  if (format == WeightFormat::fp8_block) return fp8_config(kept);
  return compressed_tensors_config({{format, "Linear"}}, kept);
}

std::string mixed_quantization_config(WeightFormat experts, WeightFormat rest,
                                      const std::vector<std::string>& kept) {
  // An expression goes before the class, by those who read it.
  return compressed_tensors_config({{experts, "re:.*\\.experts\\..*"}, {rest, "Linear"}}, kept);
}

}  // namespace nibble
