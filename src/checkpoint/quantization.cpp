#include "checkpoint/quantization.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/glob.h"
#include "base/quote.h"
#include "checkpoint/quantization_readers.h"

namespace nibble {
namespace {

constexpr std::string_view what_runs =
    "experts in bf16, gpt-oss's mxfp4, fp8 in blocks of 128 x 128, fbgemm_fp8, ModelOpt's NVFP4, FP8_PB_WO, "
    "FP8_PER_CHANNEL_PER_TOKEN and FP8, and compressed-tensors' "
    "nvfp4-pack-quantized, mxfp4-pack-quantized, pack-quantized (int4 in groups of 32) and float-quantized "
    "(fp8 in blocks of 128 x 128, by channel or with one scale) are read";

// Methods that are about, and how one comes to a checkpoint that runs.
Status unknown_method(const std::string& method, std::string_view field) {
  std::string how = "; " + std::string(what_runs);
  for (const std::string_view known : {"awq", "gptq", "gguf", "bitsandbytes", "hqq"}) {
    if (method != known) continue;
    how = ": take the model's own bf16 checkpoint, as it is or through `nibble quantize`; " +
          std::string(what_runs);
  }
  return broken_model(std::string(field) + " " + quote(method) + " is not supported" + how);
}

Status read_fp8(const ConfigFields& fields, QuantizationScheme& scheme) {
  scheme.format = TensorFormat::fp8_block;
  const std::optional<JsonValue> kind = fields.find("fmt");
  if (kind && (!kind->is_string() || kind->as_string() != "e4m3"))
    return fields.must_be("fmt", "\"e4m3\"", *kind);
  const std::optional<JsonValue> block = fields.find("weight_block_size");
  if (!block) {
    return broken_model(
        "quantization_config.weight_block_size is missing: of quant_method \"fp8\" weights with a scale a "
        "block of [128, 128] are read, and nothing says here what shares a scale");
  }
  bool usual = block->is_array() && block->size() == 2;
  if (usual) {
    for (const JsonValue& extent : block->elements())
      usual = usual && extent.is_integer() && extent.as_integer() == 128;
  }
  if (!usual) return fields.must_be("weight_block_size", "[128, 128]", *block);
  return {};
}

// Those that stay as they are; lm_head where nothing is said.
Status read_not_converted(const ConfigFields& fields, QuantizationScheme& scheme) {
  NIBBLE_RETURN_IF_ERROR(read_exclusions(fields, "modules_to_not_convert", scheme));
  if (scheme.exclude.empty() && scheme.exclude_expressions.empty()) scheme.exclude.emplace_back("lm_head");
  return {};
}

}  // namespace

std::string_view tensor_format_name(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16: return "bf16";
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed: return "mxfp4";
    case TensorFormat::fp8_block: return "fp8_block";
    case TensorFormat::fp8_row: return "fp8_row";
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return "nvfp4";
    case TensorFormat::int4_packed: return "int4";
  }
  return {};
}

std::int64_t block_columns(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16:
    case TensorFormat::fp8_block:
    case TensorFormat::fp8_row: return 1;
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed:
    case TensorFormat::int4_packed: return 32;
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return 16;
  }
  return 1;
}

bool QuantizationScheme::tells_experts_apart() const {
  const auto of_experts = [](std::string_view text) { return text.find("experts") != text.npos; };
  return !modules.empty() || !expressions.empty() ||
         std::any_of(exclude.begin(), exclude.end(), of_experts) ||
         std::any_of(exclude_expressions.begin(), exclude_expressions.end(),
                     [&](const NameExpression& expression) { return of_experts(expression.text()); });
}

const ModuleFormat* QuantizationScheme::own_format(std::string_view module) const {
  const auto own =
      std::lower_bound(modules.begin(), modules.end(), module,
                       [](const auto& each, std::string_view name) { return each.first < name; });
  return own != modules.end() && own->first == module ? &own->second : nullptr;
}

const ModuleFormat* QuantizationScheme::format_around(std::string_view module) const {
  if (!names_hold) return nullptr;
  for (std::size_t dot = module.rfind('.'); dot != module.npos; dot = module.substr(0, dot).rfind('.')) {
    if (const ModuleFormat* around = own_format(module.substr(0, dot))) return around;
  }
  return nullptr;
}

bool QuantizationScheme::excludes(std::string_view module) const {
  const auto is_in = [&](const std::string& pattern) {
    return matches(pattern, module) || matches(pattern + ".*", module);
  };
  return std::any_of(exclude.begin(), exclude.end(), is_in) ||
         std::any_of(exclude_expressions.begin(), exclude_expressions.end(),
                     [&](const NameExpression& expression) { return expression.matches(module); });
}

ModuleFormat QuantizationScheme::format_of(std::string_view module) const {
  if (const ModuleFormat* own = own_format(module)) return *own;
  if (excludes(module)) return {};
  if (const ModuleFormat* around = format_around(module)) return *around;
  for (const auto& [expression, of_matching] : expressions) {
    if (expression.matches(module)) return of_matching;
  }
  return {format, fp8_scales};
}

Status QuantizationScheme::check_claims(const std::string& module) const {
  if (expressions.size() < 2 || own_format(module) != nullptr || excludes(module)) return {};
  const auto claims = [&](const auto& each) { return each.first.matches(module); };
  const auto first = std::find_if(expressions.begin(), expressions.end(), claims);
  for (auto other = first; other != expressions.end(); ++other) {
    if (other->second == first->second || !claims(*other)) continue;
    return broken_model("quantization_config.config_groups gives " + quote(module) + " the format " +
                        std::string(tensor_format_name(first->second.format)) + " by " +
                        quote("re:" + first->first.text()) + " and " +
                        std::string(tensor_format_name(other->second.format)) + " by " +
                        quote("re:" + other->first.text()) +
                        "; an expression must leave out what another group has, or name the module in one");
  }
  return {};
}

void QuantizationScheme::set_formats(std::vector<std::pair<std::string, ModuleFormat>> formats) {
  const auto by_name = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(formats.begin(), formats.end(), by_name);
  std::vector<std::pair<std::string, ModuleFormat>> all;
  // Of one name the first comes, which is the one given now.
  std::set_union(formats.begin(), formats.end(), modules.begin(), modules.end(), std::back_inserter(all),
                 by_name);
  modules = std::move(all);
}

Status read_exclusions(const ConfigFields& fields, std::string_view name, QuantizationScheme& scheme) {
  constexpr std::string_view mark = "re:";
  constexpr std::size_t most_expressions = 1 << 10;
  const std::optional<JsonValue> list = fields.find(name);
  if (!list) return {};
  if (!list->is_array() || static_cast<std::int64_t>(list->size()) > most_module_names)
    return fields.must_be(name, "a list of names", *list);
  for (const JsonValue& each : list->elements()) {
    if (!each.is_string()) return fields.must_be(name, "a list of names", each);
    const std::string_view text = each.as_string();
    if (!text.starts_with(mark)) {
      scheme.exclude.emplace_back(text);
      continue;
    }
    Result<NameExpression> expression = NameExpression::compile(text.substr(mark.size()));
    if (!expression.ok() || scheme.exclude_expressions.size() == most_expressions) {
      return broken_model("quantization_config." + std::string(name) + " has the expression " + quote(text) +
                          ", which " +
                          (expression.ok() ? "comes after " + std::to_string(most_expressions) + " others"
                                           : std::string(expression.status().message())) +
                          "; list the modules by name");
    }
    scheme.exclude_expressions.push_back(std::move(expression).value());
  }
  return {};
}

Result<QuantizationScheme> read_quantization(const ConfigFields& fields) {
  QuantizationScheme scheme;
  // Of ModelOpt's two spellings one says who wrote it by `quant_algo` alone.
  if (!fields.find("quant_method") && fields.find("quant_algo")) {
    scheme.method = "modelopt";
  } else {
    NIBBLE_ASSIGN(scheme.method, fields.string("quant_method"));
  }
  if (scheme.method == "mxfp4") {
    // Of the experts that lie in one tensor alone, which say so themselves.
    scheme.format = TensorFormat::bf16;
  } else if (scheme.method == "fp8") {
    NIBBLE_RETURN_IF_ERROR(read_fp8(fields, scheme));
    NIBBLE_RETURN_IF_ERROR(read_not_converted(fields, scheme));
  } else if (scheme.method == "fbgemm_fp8") {
    scheme.format = TensorFormat::fp8_row;
    NIBBLE_RETURN_IF_ERROR(read_not_converted(fields, scheme));
  } else if (scheme.method.starts_with("modelopt")) {
    scheme.method = "modelopt";
    NIBBLE_RETURN_IF_ERROR(read_modelopt(fields, scheme));
  } else if (scheme.method == "compressed-tensors") {
    NIBBLE_RETURN_IF_ERROR(read_compressed_tensors(fields, scheme));
  } else {
    return unknown_method(scheme.method, "quantization_config.quant_method");
  }
  return scheme;
}

}  // namespace nibble
