// What ModelOpt says of formats.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "base/quote.h"
#include "checkpoint/quantization_readers.h"

namespace nibble {
namespace {

struct Algorithm {
  std::string_view name;
  ModuleFormat format;
  std::int64_t group_size;  // 0: has none
};
constexpr Algorithm algorithms[] = {
    {"NVFP4", {TensorFormat::nvfp4}, 16},
    {"W4A16_NVFP4", {TensorFormat::nvfp4}, 16},
    {"FP8_PB_WO", {TensorFormat::fp8_block, Fp8Scales::either}, 128},
    // Names of the same: as the exporter spells what it has no other name for, and as other tools do.
    {"fp8_pb_wo", {TensorFormat::fp8_block, Fp8Scales::either}, 128},
    {"FP8_BLOCK_SCALES", {TensorFormat::fp8_block, Fp8Scales::either}, 128},
    {"FP8_PER_CHANNEL_PER_TOKEN", {TensorFormat::fp8_row}, 0},
    {"FP8", {TensorFormat::fp8_block, Fp8Scales::single}, 0},
};

// What `quant_algo` and `group_size` of these fields say.
Result<ModuleFormat> modelopt_format(const ConfigFields& fields, std::string_view where) {
  NIBBLE_ASSIGN(const std::string name, fields.string("quant_algo"));
  const auto* const found = std::find_if(std::begin(algorithms), std::end(algorithms),
                                         [&](const Algorithm& each) { return each.name == name; });
  if (found == std::end(algorithms)) {
    return broken_model(
        std::string(where) + " has quant_algo " + quote(name) +
        ", which is not supported; \"NVFP4\", \"W4A16_NVFP4\", \"FP8_PB_WO\" (blocks of 128 x "
        "128), \"FP8_PER_CHANNEL_PER_TOKEN\" and \"FP8\" (one scale a matrix) are");
  }
  const std::optional<JsonValue> given = fields.find("group_size");
  if (found->group_size > 0 && given && (!given->is_integer() || given->as_integer() != found->group_size))
    return fields.must_be("group_size", std::to_string(found->group_size), *given);
  return found->format;
}

}  // namespace

Status read_modelopt(const ConfigFields& fields, QuantizationScheme& scheme) {
  NIBBLE_ASSIGN(const std::string algorithm, fields.string("quant_algo"));
  NIBBLE_RETURN_IF_ERROR(
      read_exclusions(fields, fields.find("exclude_modules") ? "exclude_modules" : "ignore", scheme));
  if (algorithm != "MIXED_PRECISION") {
    NIBBLE_ASSIGN(const ModuleFormat format, modelopt_format(fields, "quantization_config"));
    scheme.format = format.format;
    scheme.fp8_scales = format.fp8_scales;
    return {};
  }
  scheme.names_hold = true;
  const std::optional<JsonValue> layers = fields.find("quantized_layers");
  if (!layers) return fields.missing("quantized_layers");
  if (!layers->is_object() || static_cast<std::int64_t>(layers->size()) > most_module_names)
    return fields.must_be("quantized_layers", "an object", *layers);
  for (const auto& [name, layer] : layers->members()) {
    if (!layer.is_object()) return fields.must_be("quantized_layers", "an object of objects", layer);
    const ConfigFields inner(layer, "quantized_layers." + std::string(name));
    NIBBLE_ASSIGN(const ModuleFormat format, modelopt_format(inner, "quantized_layers." + std::string(name)));
    scheme.modules.emplace_back(std::string(name), format);
  }
  std::sort(scheme.modules.begin(), scheme.modules.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return {};
}

}  // namespace nibble
