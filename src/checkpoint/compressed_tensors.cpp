// What compressed-tensors says of formats: groups of modules, each with a format. A group's targets are names
// of modules, expressions on them behind "re:", and "Linear" for all. A name goes before an expression, and
// an expression before "Linear", as its own readers have it.
#include <algorithm>
#include <optional>
#include <string>

#include "base/quote.h"
#include "checkpoint/quantization_readers.h"

namespace nibble {
namespace {

constexpr std::int64_t max_group = 1 << 20;
constexpr std::int64_t most_groups = 64, most_expressions = 1 << 10;
constexpr std::string_view expression_mark = "re:";

constexpr std::string_view nvfp4 = "nvfp4-pack-quantized", mxfp4 = "mxfp4-pack-quantized",
                           int4 = "pack-quantized", fp8 = "float-quantized", plain = "naive-quantized",
                           mixed = "mixed-precision";

Status unknown_format(const std::string& where, const std::string& format) {
  return broken_model(
      where + " " + quote(format) +
      " of compressed-tensors is not supported; \"nvfp4-pack-quantized\", "
      "\"mxfp4-pack-quantized\", \"pack-quantized\", \"float-quantized\" and groups of those in "
      "\"mixed-precision\" are");
}

// How a group's weights are made to numbers of few bits.
struct WeightArguments {
  std::int64_t bits = 0;
  std::string type;
  std::int64_t group_size = 0;  // 0: not said
};
Result<WeightArguments> read_arguments(const ConfigFields& weights) {
  WeightArguments read;
  NIBBLE_ASSIGN(read.bits, weights.integer("num_bits", 1, 64));
  NIBBLE_ASSIGN(read.type, weights.string("type"));
  NIBBLE_ASSIGN(read.group_size, weights.integer_or("group_size", -1, max_group, 0));
  return read;
}

// The format that compressed-tensors takes for such weights where a group does not say it.
std::string_view derived_format(const WeightArguments& weights) {
  if (weights.type == "int") return int4;
  if (weights.type != "float") return {};
  if (weights.bits == 8) return fp8;
  if (weights.bits == 4 && weights.group_size == 32) return mxfp4;
  return weights.bits == 4 && weights.group_size == 16 ? nvfp4 : std::string_view();
}

Status check_int4(const ConfigFields& fields, const WeightArguments& weights) {
  NIBBLE_ASSIGN(const bool symmetric, fields.boolean("symmetric"));
  const std::optional<JsonValue> order = fields.find("actorder");
  if (weights.bits == 4 && weights.group_size == 32 && weights.type == "int" && symmetric && !order)
    return {};
  return broken_model(
      "compressed-tensors' pack-quantized has " + weights.type + " of " + std::to_string(weights.bits) +
      " bits in groups of " + std::to_string(weights.group_size) + (symmetric ? "" : " with zero points") +
      (order ? " in an order of its own" : "") + "; symmetric int of 4 bits in groups of 32 is read");
}

Result<ModuleFormat> read_fp8(const ConfigFields& fields, const WeightArguments& weights,
                              const std::string& where) {
  if (weights.bits != 8 || weights.type != "float") {
    return broken_model(where + " has " + quote(weights.type) + " of " + std::to_string(weights.bits) +
                        " bits; of \"float-quantized\" 8 bits of \"float\" are read");
  }
  NIBBLE_ASSIGN(const std::string strategy, fields.string("strategy"));
  if (strategy == "tensor") return ModuleFormat{TensorFormat::fp8_block, Fp8Scales::single};
  if (strategy == "channel") return ModuleFormat{TensorFormat::fp8_row};
  if (strategy != "block") {
    return broken_model(where + ".strategy " + quote(strategy) +
                        " is not supported for FP8; \"block\" with block_structure [128, 128], \"channel\" "
                        "and \"tensor\" are");
  }
  const std::optional<JsonValue> block = fields.find("block_structure");
  if (!block) return fields.missing("block_structure");
  bool usual = block->is_array() && block->size() == 2;
  if (usual) {
    for (const JsonValue& extent : block->elements())
      usual = usual && extent.is_integer() && extent.as_integer() == 128;
  }
  if (!usual) return fields.must_be("block_structure", "[128, 128]", *block);
  return ModuleFormat{TensorFormat::fp8_block, Fp8Scales::plain};
}

// Of a group's weights in a format of that name.
Result<ModuleFormat> format_of_weights(const ConfigFields& fields, std::string format,
                                       const std::string& group) {
  const std::optional<JsonValue> weights = fields.find("weights");
  if (!weights) return fields.missing("weights");
  if (!weights->is_object()) return fields.must_be("weights", "an object", *weights);
  const std::string where = group + ".weights";
  const ConfigFields inner(*weights, where);
  NIBBLE_ASSIGN(const WeightArguments arguments, read_arguments(inner));
  const auto say = [&] {
    return quote(arguments.type) + " of " + std::to_string(arguments.bits) + " bits " +
           (arguments.group_size == 0 ? "without a group_size"
                                      : "in groups of " + std::to_string(arguments.group_size));
  };
  if (format == mixed) {
    format = derived_format(arguments);
    if (format.empty()) {
      return broken_model(group + " has no format, and its weights are " + say() +
                          "; float of 4 bits in groups of 16 or 32, int of 4 bits in groups of 32 and float "
                          "of 8 bits are read");
    }
  }
  if (format == int4) {
    NIBBLE_RETURN_IF_ERROR(check_int4(inner, arguments));
    return ModuleFormat{TensorFormat::int4_packed};
  }
  if (format == fp8 || format == plain) return read_fp8(inner, arguments, where);
  if (format != nvfp4 && format != mxfp4) return unknown_format(group + ".format", format);
  const std::int64_t size = format == nvfp4 ? 16 : 32;
  if (arguments.bits != 4 || arguments.type != "float" || arguments.group_size != size) {
    return broken_model(where + " are " + say() + ", and " + format +
                        " has \"float\" of 4 bits in groups of " + std::to_string(size));
  }
  return ModuleFormat{format == nvfp4 ? TensorFormat::nvfp4_packed : TensorFormat::mxfp4_packed};
}

// Groups, one after the other.
class GroupReader {
 public:
  explicit GroupReader(QuantizationScheme& scheme) : scheme_(scheme) {}

  Status read(const std::string& where, const JsonValue& group, const std::string& format_of_all) {
    const ConfigFields fields(group, where);
    std::string format_name = format_of_all;
    if (fields.find("format")) {
      NIBBLE_ASSIGN(format_name, fields.string("format"));
      if (format_name == mixed) return unknown_format(where + ".format", format_name);
    }
    NIBBLE_ASSIGN(const ModuleFormat format, format_of_weights(fields, format_name, where));
    const std::optional<JsonValue> targets = fields.find("targets");
    if (!targets) return fields.missing("targets");
    if (!targets->is_array()) return fields.must_be("targets", "a list of names", *targets);
    for (const JsonValue& target : targets->elements()) {
      if (!target.is_string()) return fields.must_be("targets", "a list of names", target);
      NIBBLE_RETURN_IF_ERROR(add(std::string(target.as_string()), format, where));
    }
    return {};
  }

  // The groups' names and targets are known: what stays as it is goes before them.
  Status finish() {
    auto& modules = scheme_.modules;
    std::sort(modules.begin(), modules.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 1; i < modules.size(); ++i) {
      if (modules[i].first == modules[i - 1].first && modules[i].second != modules[i - 1].second)
        return claimed_twice(modules[i].first);
    }
    const auto stays = [&](const auto& module) { return scheme_.excludes(module.first); };
    modules.erase(std::remove_if(modules.begin(), modules.end(), stays), modules.end());
    return {};
  }

 private:
  static Status claimed_twice(const std::string& target) {
    return broken_model("quantization_config.config_groups has the target " + quote(target) +
                        " in two groups of different formats; it must be in one of them");
  }

  Status add(std::string target, const ModuleFormat& format, const std::string& where) {
    if (target == "Linear") {
      if (for_all_ && *for_all_ != format) return claimed_twice(target);
      for_all_ = format;
      scheme_.format = format.format;
      scheme_.fp8_scales = format.fp8_scales;
      return {};
    }
    if (!target.starts_with(expression_mark)) {
      if (static_cast<std::int64_t>(scheme_.modules.size()) == most_module_names)
        return broken_model(where + ".targets has more than " + std::to_string(most_module_names) + " names");
      scheme_.modules.emplace_back(std::move(target), format);
      return {};
    }
    if (static_cast<std::int64_t>(scheme_.expressions.size()) == most_expressions)
      return broken_model(where + ".targets has more than " + std::to_string(most_expressions) +
                          " expressions");
    Result<NameExpression> expression = NameExpression::compile(target.substr(expression_mark.size()));
    if (!expression.ok()) {
      return broken_model(where + ".targets has the expression " + quote(target) + ", which " +
                          std::string(expression.status().message()) + "; list the modules by name");
    }
    scheme_.expressions.emplace_back(std::move(expression).value(), format);
    return {};
  }

  QuantizationScheme& scheme_;
  std::optional<ModuleFormat> for_all_;
};

}  // namespace

Status read_compressed_tensors(const ConfigFields& fields, QuantizationScheme& scheme) {
  NIBBLE_ASSIGN(const std::string format, fields.string("format"));
  if (format != nvfp4 && format != mxfp4 && format != int4 && format != fp8 && format != plain &&
      format != mixed)
    return unknown_format("quantization_config.format", format);
  NIBBLE_RETURN_IF_ERROR(read_exclusions(fields, "ignore", scheme));
  const std::optional<JsonValue> groups = fields.find("config_groups");
  if (!groups && (format == nvfp4 || format == mxfp4)) {
    scheme.format = format == nvfp4 ? TensorFormat::nvfp4_packed : TensorFormat::mxfp4_packed;
    return {};
  }
  if (!groups) return fields.missing("config_groups");
  if (!groups->is_object() || groups->size() == 0 ||
      static_cast<std::int64_t>(groups->size()) > most_groups) {
    return fields.must_be("config_groups", "an object of 1 to " + std::to_string(most_groups) + " groups",
                          *groups);
  }
  GroupReader reader(scheme);
  for (const auto& [name, group] : groups->members()) {
    const std::string where = "quantization_config.config_groups." + escape(name);
    if (!group.is_object()) return broken_model(where + " must be an object, not " + shown(group));
    NIBBLE_RETURN_IF_ERROR(reader.read(where, group, format));
  }
  return reader.finish();
}

}  // namespace nibble
