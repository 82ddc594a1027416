#include "checkpoint/quantization.h"

#include <algorithm>
#include <optional>

#include "base/glob.h"
#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::int64_t most_patterns = 1 << 16;
constexpr std::int64_t max_group = 1 << 20;

constexpr std::string_view what_runs =
    "experts in bf16, gpt-oss's mxfp4, fp8 in blocks of 128 x 128, ModelOpt's NVFP4, and compressed-tensors' "
    "nvfp4-pack-quantized, mxfp4-pack-quantized and pack-quantized (int4 in groups of 32) are read";

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

// "(a|b)c" as "ac" and "bc", for groups of plain names. Other brackets stay, and are refused later.
std::vector<std::string> without_choices(std::string text) {
  std::vector<std::string> open = {std::move(text)}, done;
  while (!open.empty()) {
    const std::string next = std::move(open.back());
    open.pop_back();
    const std::size_t begin = next.find('('), end = next.find(')', begin);
    const bool choice = end != next.npos &&
                        static_cast<std::int64_t>(open.size() + done.size()) < most_patterns &&
                        next.find_first_of("\\[](){}+*?", begin + 1) == end;
    if (!choice) {
      done.push_back(next);
      continue;
    }
    for (std::size_t at = begin + 1; at <= end;) {
      const std::size_t past = std::min(next.find('|', at), end);
      open.push_back(next.substr(0, begin) + next.substr(at, past - at) + next.substr(end + 1));
      at = past + 1;
    }
  }
  return done;
}

// compressed-tensors writes expressions behind "re:"; those that only say "any text" are patterns.
Result<std::string> pattern_of(std::string text) {
  constexpr std::string_view mark = "re:";
  if (!text.starts_with(mark)) return text;
  const std::string expression = text.substr(mark.size());
  std::string pattern;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if ((c == '^' && i == 0) || (c == '$' && next == '\0')) continue;
    if (c == '\\' && next == '.') {
      pattern += '.';
      ++i;
    } else if (c == '.' && (next == '*' || next == '+')) {
      pattern += next == '*' ? "*" : "?*";
      ++i;
    } else if (std::string_view("\\[](){}|+*?").find(c) != std::string_view::npos) {
      return broken_model("quantization_config.ignore has the expression " + quote(text) +
                          ", of which only names, \\., .* and (a|b) are read; list the modules by name");
    } else {
      pattern += c;
    }
  }
  // An expression need not reach the name's end.
  if (!expression.ends_with('$')) pattern += '*';
  return pattern;
}

Result<std::vector<std::string>> read_patterns(const ConfigFields& fields, std::string_view name) {
  std::vector<std::string> patterns;
  const std::optional<JsonValue> list = fields.find(name);
  if (!list) return patterns;
  if (!list->is_array() || static_cast<std::int64_t>(list->size()) > most_patterns)
    return fields.must_be(name, "a list of names", *list);
  for (const JsonValue& each : list->elements()) {
    if (!each.is_string()) return fields.must_be(name, "a list of names", each);
    for (std::string& choice : without_choices(std::string(each.as_string()))) {
      NIBBLE_ASSIGN(std::string pattern, pattern_of(std::move(choice)));
      patterns.push_back(std::move(pattern));
    }
    if (static_cast<std::int64_t>(patterns.size()) > most_patterns)
      return broken_model("quantization_config." + std::string(name) + " has more than " +
                          std::to_string(most_patterns) + " patterns");
  }
  return patterns;
}

Status read_fp8(const ConfigFields& fields, QuantizationScheme& scheme) {
  scheme.format = TensorFormat::fp8_block;
  const std::optional<JsonValue> kind = fields.find("fmt");
  if (kind && (!kind->is_string() || kind->as_string() != "e4m3"))
    return fields.must_be("fmt", "\"e4m3\"", *kind);
  const std::optional<JsonValue> block = fields.find("weight_block_size");
  if (!block) {
    return broken_model(
        "quantization_config.weight_block_size is missing: fp8 weights with one scale a tensor or a row are "
        "not supported, those with a scale a block of [128, 128] are");
  }
  bool usual = block->is_array() && block->size() == 2;
  if (usual) {
    for (const JsonValue& extent : block->elements())
      usual = usual && extent.is_integer() && extent.as_integer() == 128;
  }
  if (!usual) return fields.must_be("weight_block_size", "[128, 128]", *block);
  NIBBLE_ASSIGN(scheme.exclude, read_patterns(fields, "modules_to_not_convert"));
  if (scheme.exclude.empty()) scheme.exclude.emplace_back("lm_head");
  return {};
}

Result<TensorFormat> modelopt_format(const std::string& algorithm, std::string_view where) {
  if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") return TensorFormat::nvfp4;
  return broken_model(std::string(where) + " has quant_algo " + quote(algorithm) +
                      ", which is not supported; \"NVFP4\" and \"W4A16_NVFP4\" are");
}

Status check_group_size(const ConfigFields& fields, std::int64_t size) {
  const std::optional<JsonValue> given = fields.find("group_size");
  if (given && (!given->is_integer() || given->as_integer() != size))
    return fields.must_be("group_size", std::to_string(size), *given);
  return {};
}

// Two spellings: hf_quant_config.json has the fields in `quantization`, config.json has them flat.
Status read_modelopt(const ConfigFields& fields, QuantizationScheme& scheme) {
  NIBBLE_ASSIGN(const std::string algorithm, fields.string("quant_algo"));
  NIBBLE_ASSIGN(scheme.exclude,
                read_patterns(fields, fields.find("exclude_modules") ? "exclude_modules" : "ignore"));
  if (algorithm != "MIXED_PRECISION") {
    NIBBLE_ASSIGN(scheme.format, modelopt_format(algorithm, "quantization_config"));
    return check_group_size(fields, 16);
  }
  const std::optional<JsonValue> layers = fields.find("quantized_layers");
  if (!layers) return fields.missing("quantized_layers");
  if (!layers->is_object() || static_cast<std::int64_t>(layers->size()) > most_patterns)
    return fields.must_be("quantized_layers", "an object", *layers);
  for (const auto& [name, layer] : layers->members()) {
    if (!layer.is_object()) return fields.must_be("quantized_layers", "an object of objects", layer);
    const ConfigFields inner(layer, "quantized_layers." + std::string(name));
    NIBBLE_ASSIGN(const std::string of_layer, inner.string("quant_algo"));
    NIBBLE_RETURN_IF_ERROR(check_group_size(inner, 16));
    NIBBLE_ASSIGN(const TensorFormat format,
                  modelopt_format(of_layer, "quantized_layers." + std::string(name)));
    scheme.modules.emplace_back(std::string(name), format);
  }
  std::sort(scheme.modules.begin(), scheme.modules.end());
  return {};
}

// Every module that is not left alone has its weights in four bits, 32 columns to a scale.
Status check_int4_groups(const ConfigFields& fields) {
  const std::optional<JsonValue> groups = fields.find("config_groups");
  if (!groups) return fields.missing("config_groups");
  if (!groups->is_object() || groups->size() != 1)
    return fields.must_be("config_groups", "an object with one group, of all modules", *groups);
  const JsonValue group = (*groups->members().begin()).second;
  const std::optional<JsonValue> weights = group.is_object() ? group.find("weights") : std::nullopt;
  if (!weights || !weights->is_object())
    return broken_model("quantization_config.config_groups has a group without weights");
  const ConfigFields inner(*weights, "quantization_config.config_groups weights");
  NIBBLE_ASSIGN(const std::int64_t bits, inner.integer("num_bits", 1, 64));
  NIBBLE_ASSIGN(const std::int64_t size, inner.integer("group_size", -1, max_group));
  NIBBLE_ASSIGN(const std::string type, inner.string("type"));
  NIBBLE_ASSIGN(const bool symmetric, inner.boolean("symmetric"));
  const std::optional<JsonValue> order = inner.find("actorder");
  if (bits == 4 && size == 32 && type == "int" && symmetric && (!order || order->is_null())) return {};
  return broken_model("compressed-tensors' pack-quantized has " + type + " of " + std::to_string(bits) +
                      " bits in groups of " + std::to_string(size) + (symmetric ? "" : " with zero points") +
                      (order && !order->is_null() ? " in an order of its own" : "") +
                      "; symmetric int of 4 bits in groups of 32 is read");
}

Status read_compressed_tensors(const ConfigFields& fields, QuantizationScheme& scheme) {
  NIBBLE_ASSIGN(const std::string format, fields.string("format"));
  if (format == "nvfp4-pack-quantized") {
    scheme.format = TensorFormat::nvfp4_packed;
  } else if (format == "mxfp4-pack-quantized") {
    scheme.format = TensorFormat::mxfp4_packed;
  } else if (format == "pack-quantized") {
    NIBBLE_RETURN_IF_ERROR(check_int4_groups(fields));
    scheme.format = TensorFormat::int4_packed;
  } else {
    return broken_model("quantization_config.format " + quote(format) +
                        " of compressed-tensors is not supported; \"nvfp4-pack-quantized\", "
                        "\"mxfp4-pack-quantized\" and \"pack-quantized\" are");
  }
  NIBBLE_ASSIGN(scheme.exclude, read_patterns(fields, "ignore"));
  return {};
}

}  // namespace

std::string_view tensor_format_name(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16: return "bf16";
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed: return "mxfp4";
    case TensorFormat::fp8_block: return "fp8_block";
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return "nvfp4";
    case TensorFormat::int4_packed: return "int4";
  }
  return {};
}

std::int64_t block_columns(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16:
    case TensorFormat::fp8_block: return 1;
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed:
    case TensorFormat::int4_packed: return 32;
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return 16;
  }
  return 1;
}

bool QuantizationScheme::tells_experts_apart() const {
  return !modules.empty() || std::any_of(exclude.begin(), exclude.end(), [](const std::string& pattern) {
    return pattern.find("experts") != pattern.npos;
  });
}

TensorFormat QuantizationScheme::format_of(std::string_view module) const {
  const auto own =
      std::lower_bound(modules.begin(), modules.end(), module,
                       [](const auto& each, std::string_view name) { return each.first < name; });
  if (own != modules.end() && own->first == module) return own->second;
  const bool excluded = std::any_of(exclude.begin(), exclude.end(), [&](const std::string& pattern) {
    // A pattern names modules, or one that they are in.
    return matches(pattern, module) || matches(pattern + ".*", module);
  });
  return excluded ? TensorFormat::bf16 : format;
}

void QuantizationScheme::set_formats(std::vector<std::pair<std::string, TensorFormat>> formats) {
  std::sort(formats.begin(), formats.end());
  std::vector<std::pair<std::string, TensorFormat>> all = std::move(formats);
  const auto given = [&](const std::string& name) {
    return std::binary_search(all.begin(), all.end(), std::pair(name, TensorFormat{}),
                              [](const auto& a, const auto& b) { return a.first < b.first; });
  };
  std::vector<std::pair<std::string, TensorFormat>> kept;
  for (auto& each : modules) {
    if (!given(each.first)) kept.push_back(std::move(each));
  }
  all.insert(all.end(), kept.begin(), kept.end());
  std::sort(all.begin(), all.end());
  modules = std::move(all);
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
