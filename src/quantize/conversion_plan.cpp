#include "quantize/conversion_plan.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "checkpoint/safetensors.h"

namespace nibble {
namespace {

constexpr std::string_view weight_suffix = ".weight";

// A module of the source that could be quantized.
struct Module {
  std::string name;
  const StoredTensor* stored = nullptr;
  bool fused = false;
};

// Models that keep the experts of a layer in one tensor.
// gpt_oss: [experts, cols, rows], gate and up rows alternating.
// qwen3_5: [experts, rows, cols], gate rows before up rows.
enum class Fusion : std::uint8_t { none, gpt_oss, qwen3_5 };

Fusion fusion_of(std::string_view architecture) {
  if (architecture == "GptOssForCausalLM") return Fusion::gpt_oss;
  return architecture.starts_with("Qwen3_5Moe") ? Fusion::qwen3_5 : Fusion::none;
}

// The fused expert tensors of both.
bool is_fused(const StoredTensor& stored) {
  const std::string_view name = stored.name;
  return stored.tensor.shape.rank() == 3 &&
         (name.ends_with(".mlp.experts.gate_up_proj") || name.ends_with(".mlp.experts.down_proj"));
}

Result<Fusion> read_config(const std::string& text) {
  Result<JsonDocument> document = JsonDocument::parse(text);
  if (!document.ok()) return broken_model("config.json: " + document.status().message());
  const JsonValue root = document->root();
  if (!root.is_object()) return broken_model("config.json is no JSON object");
  // null says what its absence says.
  if (const std::optional<JsonValue> given = root.find("quantization_config"); given && !given->is_null()) {
    if (!given->is_object()) return broken_model("config.json: quantization_config must be an object");
    const std::optional<JsonValue> method = given->find("quant_method");
    const std::string name = method && method->is_string() ? quote(method->as_string()) : "unnamed";
    return invalid_argument("SRC is quantized already (quant_method " + name +
                            " in its config.json); give the checkpoint it was made from");
  }
  Fusion fusion = Fusion::none;
  if (const std::optional<JsonValue> names = root.find("architectures"); names && names->is_array()) {
    for (const JsonValue& name : names->elements()) {
      if (fusion == Fusion::none && name.is_string()) fusion = fusion_of(name.as_string());
    }
  }
  return fusion;
}

// Where the null of a "quantization_config" among the members of the whole text's object stands, a JSON
// object that was read without an error; npos: there is none.
std::size_t null_quantization(std::string_view config) {
  constexpr std::string_view name = "\"quantization_config\"";
  const auto next = [&](std::size_t at) {
    return std::min(config.find_first_not_of(" \t\r\n", at), config.size());
  };
  int depth = 0;
  for (std::size_t at = 0; at < config.size(); ++at) {
    const char c = config[at];
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (c != '"') continue;
    if (const std::size_t colon = next(at + name.size());
        depth == 1 && config.substr(at).starts_with(name) && config.substr(colon).starts_with(":")) {
      const std::size_t null = next(colon + 1);
      return config.substr(null).starts_with("null") ? null : std::string_view::npos;
    }
    for (++at; config[at] != '"'; ++at) at += config[at] == '\\' ? 1 : 0;
  }
  return std::string_view::npos;
}

std::string with_quantization(const std::string& config, const std::string& value) {
  if (const std::size_t null = null_quantization(config); null != std::string::npos)
    return config.substr(0, null) + value + config.substr(null + 4);
  // The text is a JSON object, so its last brace closes it; what stands before it stays as it was written.
  const std::size_t brace = config.rfind('}');
  const std::size_t last = config.find_last_not_of(" \t\r\n", brace - 1);
  const bool empty = config[last] == '{';
  return config.substr(0, last + 1) + (empty ? "" : ",") + "\n  \"quantization_config\": " + value + "\n}\n";
}

// Modules that share their inputs and are multiplied as one by others: q, k and v; gate and up.
std::string scale_group_key(const std::string& module) {
  static constexpr std::pair<std::string_view, std::string_view> groups[] = {
      {".q_proj", ".qkv"},      {".k_proj", ".qkv"}, {".v_proj", ".qkv"}, {".gate_proj", ".gate_up"},
      {".up_proj", ".gate_up"}, {".w1", ".w13"},     {".w3", ".w13"}};
  for (const auto& [suffix, group] : groups) {
    if (module.ends_with(suffix)) return module.substr(0, module.size() - suffix.size()) + std::string(group);
  }
  return module;
}

class Planner {
 public:
  Planner(const WeightSource& source, const ConversionOptions& options, Fusion fusion)
      : source_(source), options_(options), fusion_(fusion), gpt_oss_(fusion == Fusion::gpt_oss) {}

  Status run();
  ConversionPlan take(const std::string& config);

 private:
  Status collect_modules();
  // Whether there is another format for what is no expert, and what for.
  Status check_rest() const;
  WeightFormat format_of(const std::string& module) const {
    const bool is_rest = options_.rest && module_kind(module) != ModuleKind::expert;
    return is_rest ? *options_.rest : options_.encode.format;
  }
  Status check_module(const Module& module) const;
  void add_copy(const StoredTensor& stored);
  void add_matrix(const std::string& name, std::vector<MatrixSource> matrices);
  std::int64_t fused_inputs(const Shape& shape) const { return shape[gpt_oss_ ? 1 : 2]; }
  std::int64_t fused_rows(const Shape& shape) const { return shape[gpt_oss_ ? 2 : 1]; }
  void add_fused(const Module& module);
  void add_stacked(const Module& module);
  void add_fused_bias(const StoredTensor& stored);
  void add_global_scale(ConversionJob& job, const std::string& name);
  int add_tensor(std::string name, DType dtype, const Shape& shape);
  bool splits(const StoredTensor& bias) const;
  void assign_files();

  const WeightSource& source_;
  const ConversionOptions& options_;
  Fusion fusion_;
  bool gpt_oss_;
  std::vector<Module> modules_;
  std::map<std::string, bool> chosen_;  // by the stored tensor's name
  std::vector<std::string> kept_;
  std::map<std::string, int> groups_;
  ConversionPlan plan_;
};

Status Planner::collect_modules() {
  for (const StoredTensor& stored : source_.tensors()) {
    if (!is_wide(stored.tensor.dtype)) {
      if (dtype_bytes(stored.tensor.dtype) > 1 || !stored.name.ends_with(weight_suffix)) continue;
      return invalid_argument("tensor " + quote(stored.name) + " is " +
                              std::string(dtype_name(stored.tensor.dtype)) +
                              ": SRC is quantized already; give the checkpoint it was made from");
    }
    if (fusion_ != Fusion::none && is_fused(stored)) {
      modules_.push_back({stored.name, &stored, true});
    } else if (stored.tensor.shape.rank() == 2 && stored.name.ends_with(weight_suffix)) {
      modules_.push_back({stored.name.substr(0, stored.name.size() - weight_suffix.size()), &stored, false});
    } else if (stored.tensor.shape.rank() == 3 && module_kind(stored.name) == ModuleKind::expert) {
      return invalid_argument(
          "tensor " + quote(stored.name) + " holds fused experts " + stored.tensor.shape.to_string() +
          " of a model other than gpt-oss and Qwen3.5; which of its axes is which is not known");
    }
  }
  if (modules_.empty()) return broken_model("SRC has no weights in two dimensions to quantize");
  return {};
}

Status Planner::check_rest() const {
  if (!options_.rest) return {};
  const std::string option = "--rest " + std::string(weight_format_name(*options_.rest));
  const WeightFormat format = options_.encode.format;
  if (format != WeightFormat::mxfp4 && format != WeightFormat::nvfp4) {
    return invalid_argument(option +
                            " goes with experts in 4 bits: give --format mxfp4 or nvfp4, or leave out "
                            "--rest");
  }
  if (gpt_oss_) {
    return invalid_argument(option +
                            ": gpt-oss's attention is read in bf16 alone, by nibble and by others; leave "
                            "out --rest");
  }
  if (options_.modules.set == ModuleSet::experts) {
    return invalid_argument("--modules experts leaves as it is what " + option + " converts; leave out one");
  }
  const bool has_experts = std::any_of(modules_.begin(), modules_.end(), [](const Module& module) {
    return module_kind(module.name) == ModuleKind::expert;
  });
  if (has_experts) return {};
  return invalid_argument(option + " is for what is no expert, and the model has no experts; give --format " +
                          std::string(weight_format_name(*options_.rest)) + " alone for all its modules");
}

Status Planner::check_module(const Module& module) const {
  const Shape& shape = module.stored->tensor.shape;
  const std::int64_t cols = module.fused ? fused_inputs(shape) : shape[1];
  const std::int64_t multiple = column_multiple(format_of(module.name));
  const std::string format(weight_format_name(format_of(module.name)));
  if (shape.count() == 0) return invalid_argument("module " + quote(module.name) + " is empty; --exclude it");
  if (cols % multiple != 0) {
    return invalid_argument("module " + quote(module.name) + " has " + std::to_string(cols) +
                            " inputs, and " + format + " takes them in " + std::to_string(multiple) +
                            "s; --exclude it");
  }
  const bool taken_apart = fusion_ == Fusion::qwen3_5 || options_.encode.format != WeightFormat::mxfp4;
  if (module.fused && taken_apart && module.name.ends_with("gate_up_proj") && fused_rows(shape) % 2 != 0) {
    return broken_model("tensor " + quote(module.name) + " has an odd number of gate and up rows");
  }
  if (gpt_oss_ && options_.encode.format == WeightFormat::mxfp4 && !module.fused) {
    return invalid_argument(
        "gpt-oss in mxfp4 has its experts quantized and nothing else, by those who read it; " +
        quote(module.name) + " cannot be. Leave out --modules and --include, or --exclude it");
  }
  return {};
}

int Planner::add_tensor(std::string name, DType dtype, const Shape& shape) {
  plan_.tensors.push_back({.name = std::move(name), .dtype = dtype, .shape = shape});
  return static_cast<int>(plan_.tensors.size()) - 1;
}

void Planner::add_copy(const StoredTensor& stored) {
  const std::int64_t count = stored.tensor.count();
  ConversionJob job{.name = stored.name, .source_bytes = static_cast<std::int64_t>(stored.tensor.bytes())};
  job.matrices.push_back({.tensor = stored.tensor, .row_stride = count, .rows = 1, .cols = count});
  job.codes = add_tensor(stored.name, stored.tensor.dtype, stored.tensor.shape);
  plan_.jobs.push_back(std::move(job));
}

void Planner::add_global_scale(ConversionJob& job, const std::string& name) {
  if (job.format != WeightFormat::nvfp4) return;
  job.global_scale = add_tensor(name + ".weight_global_scale", DType::f32, {1});
  const auto [found, fresh] = groups_.try_emplace(scale_group_key(name), plan_.scale_groups);
  if (fresh) ++plan_.scale_groups;
  job.scale_group = found->second;
}

void Planner::add_matrix(const std::string& name, std::vector<MatrixSource> matrices) {
  const WeightFormat format = format_of(name);
  ConversionJob job{.name = name, .quantize = true, .format = format};
  job.matrices = std::move(matrices);
  const MatrixSource& first = job.matrices.front();
  job.source_bytes = first.values() * static_cast<std::int64_t>(dtype_bytes(first.tensor.dtype));
  const MatrixPart codes = codes_part(format, first.rows, first.cols);
  MatrixPart scales = scales_part(format, first.rows, first.cols);
  if (options_.rest && format == WeightFormat::fp8_block) scales.suffix = ".weight_scale";
  job.codes = add_tensor(name + std::string(codes.suffix), codes.dtype, codes.shape);
  job.scales = add_tensor(name + std::string(scales.suffix), scales.dtype, scales.shape);
  add_global_scale(job, name);
  plan_.jobs.push_back(std::move(job));
}

// The experts of gpt-oss, stored as [experts, cols, rows]: one job with all of them in mxfp4, else a module
// for each expert and projection, gate (even rows) and up (odd rows) apart.
void Planner::add_fused(const Module& module) {
  const ConstTensor& tensor = module.stored->tensor;
  const std::int64_t experts = tensor.shape[0], cols = tensor.shape[1], rows = tensor.shape[2];
  const bool pairs = module.name.ends_with("gate_up_proj");
  const auto matrix = [&](std::int64_t expert, std::int64_t first, std::int64_t step) {
    return MatrixSource{.tensor = tensor,
                        .offset = expert * cols * rows + first,
                        .row_stride = step,
                        .col_stride = rows,
                        .rows = rows / step,
                        .cols = cols};
  };
  if (options_.encode.format == WeightFormat::mxfp4) {
    ConversionJob job{.name = module.name, .quantize = true, .format = WeightFormat::mxfp4};
    for (std::int64_t expert = 0; expert < experts; ++expert) job.matrices.push_back(matrix(expert, 0, 1));
    job.source_bytes = static_cast<std::int64_t>(tensor.bytes());
    const std::int64_t groups = cols / mxfp4_block;
    job.codes = add_tensor(module.name + "_blocks", DType::u8, {experts, rows, groups, mxfp4_block_bytes});
    job.scales = add_tensor(module.name + "_scales", DType::u8, {experts, rows, groups});
    plan_.jobs.push_back(std::move(job));
    return;
  }
  const std::string prefix = module.name.substr(0, module.name.rfind('.') + 1);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::string of_expert = prefix + std::to_string(expert);
    if (pairs) {
      add_matrix(of_expert + ".gate_proj", {matrix(expert, 0, 2)});
      add_matrix(of_expert + ".up_proj", {matrix(expert, 1, 2)});
    } else {
      add_matrix(of_expert + ".down_proj", {matrix(expert, 0, 1)});
    }
  }
}

// Qwen3.5's experts, a module for each expert and projection in every format.
void Planner::add_stacked(const Module& module) {
  const ConstTensor& tensor = module.stored->tensor;
  const std::int64_t experts = tensor.shape[0], rows = fused_rows(tensor.shape),
                     cols = fused_inputs(tensor.shape);
  const auto matrix = [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    return MatrixSource{.tensor = tensor,
                        .offset = (expert * rows + first) * cols,
                        .row_stride = cols,
                        .rows = count,
                        .cols = cols};
  };
  const std::string prefix = module.name.substr(0, module.name.rfind('.') + 1);
  const bool pairs = module.name.ends_with("gate_up_proj");
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::string of_expert = prefix + std::to_string(expert);
    if (pairs) {
      add_matrix(of_expert + ".gate_proj", {matrix(expert, 0, rows / 2)});
      add_matrix(of_expert + ".up_proj", {matrix(expert, rows / 2, rows / 2)});
    } else {
      add_matrix(of_expert + ".down_proj", {matrix(expert, 0, rows)});
    }
  }
}

// Whether a tensor is the bias of fused experts that are taken apart.
bool Planner::splits(const StoredTensor& stored) const {
  constexpr std::string_view suffix = "_bias";
  if (options_.encode.format == WeightFormat::mxfp4 || !std::string_view(stored.name).ends_with(suffix))
    return false;
  const auto found = chosen_.find(stored.name.substr(0, stored.name.size() - suffix.size()));
  return found != chosen_.end() && found->second && stored.tensor.shape.rank() == 2;
}

void Planner::add_fused_bias(const StoredTensor& stored) {
  const std::int64_t experts = stored.tensor.shape[0], rows = stored.tensor.shape[1];
  const std::string prefix = stored.name.substr(0, stored.name.rfind('.') + 1);
  const bool pairs = stored.name.ends_with("gate_up_proj_bias");
  const auto add = [&](std::int64_t expert, std::string_view projection, std::int64_t first,
                       std::int64_t step) {
    ConversionJob job{.name = prefix + std::to_string(expert) + std::string(projection)};
    job.matrices.push_back({.tensor = stored.tensor,
                            .offset = expert * rows + first,
                            .row_stride = 0,
                            .col_stride = step,
                            .rows = 1,
                            .cols = rows / step});
    job.source_bytes = rows / step * static_cast<std::int64_t>(dtype_bytes(stored.tensor.dtype));
    job.codes = add_tensor(job.name, stored.tensor.dtype, {rows / step});
    plan_.jobs.push_back(std::move(job));
  };
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    if (pairs) {
      add(expert, ".gate_proj.bias", 0, 2);
      add(expert, ".up_proj.bias", 1, 2);
    } else {
      add(expert, ".down_proj.bias", 0, 1);
    }
  }
}

Status Planner::run() {
  NIBBLE_RETURN_IF_ERROR(collect_modules());
  std::vector<std::string> names;
  for (const Module& module : modules_) names.push_back(module.name);
  NIBBLE_RETURN_IF_ERROR(check_rest());
  ModuleChoice choice = options_.modules;
  if (options_.rest) choice.set = ModuleSet::linear;
  NIBBLE_ASSIGN(const std::vector<bool> chosen, choose_modules(names, choice));
  std::map<std::string, const Module*> by_tensor;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    chosen_[modules_[i].stored->name] = chosen[i];
    by_tensor[modules_[i].stored->name] = &modules_[i];
    if (chosen[i]) {
      NIBBLE_RETURN_IF_ERROR(check_module(modules_[i]));
    } else if (module_kind(modules_[i].name) != ModuleKind::embedding) {
      kept_.push_back(modules_[i].name);
    }
  }
  // In the order of the source's files, so that a disk reads forward.
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& stored : source_.tensors()) order.push_back(&stored);
  std::stable_sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return a->file != b->file ? a->file < b->file : a->tensor.data < b->tensor.data;
  });
  for (const StoredTensor* stored : order) {
    const auto found = chosen_.find(stored->name);
    if (found == chosen_.end() || !found->second) {
      if (gpt_oss_ && splits(*stored)) {
        add_fused_bias(*stored);
      } else {
        add_copy(*stored);
      }
    } else if (by_tensor[stored->name]->fused) {
      gpt_oss_ ? add_fused(*by_tensor[stored->name]) : add_stacked(*by_tensor[stored->name]);
    } else {
      const Shape& shape = stored->tensor.shape;
      add_matrix(by_tensor[stored->name]->name,
                 {MatrixSource{
                     .tensor = stored->tensor, .row_stride = shape[1], .rows = shape[0], .cols = shape[1]}});
    }
  }
  assign_files();
  return {};
}

void Planner::assign_files() {
  // A job's tensors stay together. Offsets count from the file's data here.
  std::vector<std::vector<PlannedTensor*>> files(1);
  std::int64_t filled = 0;
  for (const ConversionJob& job : plan_.jobs) {
    const int parts[] = {job.codes, job.scales, job.global_scale};
    std::int64_t bytes = 0;
    for (const int part : parts)
      bytes += part < 0 ? 0 : plan_.tensors[static_cast<std::size_t>(part)].bytes();
    if (filled > 0 && filled + bytes > options_.shard_bytes) {
      files.emplace_back();
      filled = 0;
    }
    for (const int part : parts) {
      if (part >= 0) files.back().push_back(&plan_.tensors[static_cast<std::size_t>(part)]);
    }
    filled += bytes;
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    char name[48] = "model.safetensors";
    if (files.size() > 1)
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", f + 1, files.size());
    // Widest elements first, so that every tensor lies at a multiple of its element's size.
    std::stable_sort(files[f].begin(), files[f].end(), [](const PlannedTensor* a, const PlannedTensor* b) {
      return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
    });
    std::vector<SafetensorsEntry> entries;
    for (const PlannedTensor* tensor : files[f])
      entries.push_back({tensor->name, tensor->dtype, tensor->shape, 0});
    PlannedFile file{.name = name, .header = write_safetensors_header(entries), .bytes = 0};
    file.bytes = static_cast<std::int64_t>(file.header.size());
    for (PlannedTensor* tensor : files[f]) {
      tensor->file = static_cast<int>(f);
      tensor->offset = file.bytes;
      file.bytes += tensor->bytes();
    }
    plan_.written_bytes += file.bytes;
    plan_.files.push_back(std::move(file));
  }
}

ConversionPlan Planner::take(const std::string& config) {
  plan_.source_bytes = source_.bytes();
  const bool fused_experts = gpt_oss_ && options_.encode.format == WeightFormat::mxfp4;
  const WeightFormat format = options_.encode.format;
  plan_.config =
      with_quantization(config, options_.rest ? mixed_quantization_config(format, *options_.rest, kept_)
                                              : quantization_config(format, fused_experts, kept_));
  if (plan_.files.size() > 1) {
    std::int64_t total = 0;
    std::map<std::string, const PlannedTensor*> sorted;
    for (const PlannedTensor& tensor : plan_.tensors) {
      total += tensor.bytes();
      sorted[tensor.name] = &tensor;
    }
    JsonWriter json(plan_.index);
    json.begin_object().key("metadata").begin_object().member("total_size", total).end_object();
    json.key("weight_map").begin_object();
    for (const auto& [name, tensor] : sorted)
      json.member(name, plan_.files[static_cast<std::size_t>(tensor->file)].name);
    json.end_object().end_object();
    plan_.index += "\n";
  }
  return std::move(plan_);
}

}  // namespace

Result<ConversionPlan> plan_conversion(const WeightSource& source, const std::string& config,
                                       const ConversionOptions& options) {
  NIBBLE_ASSIGN(const Fusion fusion, read_config(config));
  Planner planner(source, options, fusion);
  NIBBLE_RETURN_IF_ERROR(planner.run());
  return planner.take(config);
}

}  // namespace nibble
