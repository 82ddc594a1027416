#include "checkpoint/expected_tensors.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>

#include "base/quote.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp8_block.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

// run(name) for each module that a weight stands for.
template <class Run>
void for_each_module(const Weight& weight, const Run& run) {
  if (weight.own_experts == 0) return run(weight.name);
  for (std::int64_t expert = 0; expert < weight.own_experts; ++expert) run(weight.name_of(expert));
}

void visit_expected(const ModelConfig& config, const VisitTensor& visit) {
  visit_weights(config, [&](const Weight& weight) {
    for_each_module(weight, [&](const std::string& name) { visit_stored(weight, name, visit); });
  });
}

// The index of element `position` of a tensor, "[3, 17, 2]".
std::string index_text(const Shape& shape, std::int64_t position) {
  std::string text;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    text = std::to_string(position % shape[axis]) + (text.empty() ? "" : ", ") + text;
    position /= shape[axis];
  }
  return "[" + text + "]";
}

// Where the first value of `bad` lies, and how many there are.
struct Found {
  std::int64_t first = -1, count = 0;
};
template <class T, class Bad>
Found find_values(const ConstTensor& tensor, const Bad& bad) {
  Found found;
  const auto values = tensor.as<T>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!bad(values[i])) continue;
    if (found.count++ == 0) found.first = static_cast<std::int64_t>(i);
  }
  return found;
}

bool is_not_finite(Bf16 value) { return (value.bits & 0x7f80) == 0x7f80; }
bool is_no_multiple(float value) { return !(value > 0 && std::isfinite(value)); }

// What is wrong with scales, as it is said of their tensor; empty: nothing.
std::string fault_of_e8m0(const ConstTensor& scales) {
  const std::span<const std::uint8_t> bytes{reinterpret_cast<const std::uint8_t*>(scales.data),
                                            scales.bytes()};
  if (bytes.empty()) return {};
  const void* first = std::memchr(bytes.data(), E8m0::nan_bits, bytes.size());
  if (first == nullptr) return {};
  const std::int64_t position = static_cast<const std::uint8_t*>(first) - bytes.data();
  const auto count = std::count(bytes.begin(), bytes.end(), E8m0::nan_bits);
  return " holds " + std::to_string(count) + " scale bytes of 255, which is NaN, the first at " +
         index_text(scales.shape, position);
}

const char* kind_of_fault(ScaleKind kind) {
  if (kind == ScaleKind::e4m3) return " scales that are NaN";
  return kind == ScaleKind::bf16 ? " scales that are NaN or infinite"
                                 : " scales that are NaN, zero, infinite or negative";
}

std::string fault_of_scales(ScaleKind kind, const ConstTensor& scales) {
  Found found;
  switch (kind) {
    case ScaleKind::none: return {};
    case ScaleKind::e8m0: return fault_of_e8m0(scales);
    case ScaleKind::e4m3:
      found = find_values<E4m3>(scales, [](E4m3 value) { return (value.bits & 0x7f) == 0x7f; });
      break;
    case ScaleKind::bf16: found = find_values<Bf16>(scales, is_not_finite); break;
    case ScaleKind::multiple:
      found = scales.dtype == DType::f32
                  ? find_values<float>(scales, is_no_multiple)
                  : find_values<Bf16>(scales, [](Bf16 value) { return is_no_multiple(value.to_float()); });
      break;
  }
  if (found.count == 0) return {};
  return " holds " + std::to_string(found.count) + kind_of_fault(kind) + ", the first at " +
         index_text(scales.shape, found.first);
}

// Scales of which a checkpoint has many, one a block.
bool has_block_scales(const ExpectedTensor& expected) {
  return expected.scales == ScaleKind::e8m0 || expected.scales == ScaleKind::e4m3 ||
         expected.scales == ScaleKind::bf16;
}

// block_scales_are_read: somebody has looked at them, and none is NaN.
Status compare_one(const ModelConfig& config, const ExpectedTensor& expected, const WeightSource& source,
                   bool block_scales_are_read) {
  if (expected.optional) return {};
  Result<ConstTensor> tensor = required_tensor(expected, source);
  if (tensor.ok() && block_scales_are_read && has_block_scales(expected)) return {};
  const StoredTensor* stored = find_tensor(expected, source);
  if (tensor.ok()) {
    const std::string fault = fault_of_scales(expected.scales, *tensor);
    return fault.empty() ? Status() : broken_model(source.named(*stored) + fault);
  }
  if (stored != nullptr && expected.by_expert && stored->tensor.dtype == expected.dtype &&
      stored->tensor.shape.rank() == expected.shape.rank() && stored->tensor.shape[0] != expected.shape[0]) {
    return broken_model(source.named(*stored) + " holds " + std::to_string(stored->tensor.shape[0]) +
                        " experts, but num_local_experts of config.json is " +
                        std::to_string(config.num_local_experts));
  }
  return tensor.status();
}

// Why a tensor that no weight has may lie there after all: exporters leave scales for keys, values and
// inputs.
bool is_left_over(std::string_view name) {
  return name.ends_with(".k_scale") || name.ends_with(".v_scale") || name.ends_with(".input_scale");
}

}  // namespace

std::string_view left_alone(const ModelConfig& config, std::string_view tensor) {
  const Architecture* architecture = find_architecture(config.architecture);
  return architecture->left_alone == nullptr ? std::string_view() : architecture->left_alone(config, tensor);
}

void visit_stored(const Weight& weight, const std::string& name, const VisitTensor& visit) {
  ExpectedTensor tensor{
      .name = name, .shape = weight.shape, .use = weight.use, .by_expert = weight.by_expert};
  if (weight.may_be_f32) tensor.other_dtype = DType::f32;
  if (!weight.is_matrix() || weight.is_bare) return visit(tensor);
  const int rank = weight.shape.rank();
  const std::int64_t rows = weight.shape[rank - 2], cols = weight.shape[rank - 1];
  // One of the tensors beside the codes.
  const auto part = [&](const char* suffix, DType dtype, const Shape& shape, ScaleKind scales) {
    ExpectedTensor made = tensor;
    made.name = name + suffix;
    made.dtype = made.other_dtype = dtype;
    made.shape = shape;
    made.scales = scales;
    return made;
  };
  const auto one = [&](const char* suffix, bool optional) {
    ExpectedTensor made = part(suffix, DType::f32, {1}, ScaleKind::multiple);
    made.one_value = true;
    made.optional = optional;
    visit(made);
  };
  switch (weight.format) {
    case TensorFormat::bf16: return visit(part(".weight", DType::bf16, weight.shape, ScaleKind::none));
    case TensorFormat::mxfp4_blocks: {
      const std::int64_t experts = weight.shape[0], blocks = cols / mxfp4_block;
      visit(part("_blocks", DType::u8, {experts, rows, blocks, mxfp4_block_bytes}, ScaleKind::none));
      return visit(part("_scales", DType::u8, {experts, rows, blocks}, ScaleKind::e8m0));
    }
    case TensorFormat::mxfp4_packed: {
      visit(part(".weight_packed", DType::u8, {rows, cols / 2}, ScaleKind::none));
      ExpectedTensor scales = part(".weight_scale", DType::u8, {rows, cols / mxfp4_block}, ScaleKind::e8m0);
      scales.other_dtype = DType::f8_e8m0;
      return visit(scales);
    }
    case TensorFormat::fp8_block: {
      visit(part(".weight", DType::f8_e4m3, {rows, cols}, ScaleKind::none));
      const bool inverse = weight.fp8_scales == Fp8Scales::inverse;
      ExpectedTensor scales = part(inverse ? ".weight_scale_inv" : ".weight_scale", DType::f32,
                                   {fp8_tiles(rows), fp8_tiles(cols)}, ScaleKind::multiple);
      scales.other_dtype = DType::bf16;
      scales.spread = weight.fp8_scales == Fp8Scales::single;
      scales.apart = weight.fp8_scales == Fp8Scales::either;
      if (scales.apart) scales.other_name = name + ".weight_scale_inv";
      return visit(scales);
    }
    case TensorFormat::fp8_row: {
      visit(part(".weight", DType::f8_e4m3, {rows, cols}, ScaleKind::none));
      ExpectedTensor scales = part(".weight_scale", DType::f32, {rows, 1}, ScaleKind::multiple);
      scales.other_dtype = DType::bf16;
      scales.flat = true;
      return visit(scales);
    }
    case TensorFormat::nvfp4:
      visit(part(".weight", DType::u8, {rows, cols / 2}, ScaleKind::none));
      visit(part(".weight_scale", DType::f8_e4m3, {rows, cols / nvfp4_block}, ScaleKind::e4m3));
      one(".weight_scale_2", false);
      return one(".input_scale", true);
    case TensorFormat::nvfp4_packed:
      visit(part(".weight_packed", DType::u8, {rows, cols / 2}, ScaleKind::none));
      visit(part(".weight_scale", DType::f8_e4m3, {rows, cols / nvfp4_block}, ScaleKind::e4m3));
      one(".weight_global_scale", false);
      return one(".input_global_scale", true);
    case TensorFormat::int4_packed: {
      visit(part(".weight_packed", DType::i32, {rows, cols / 8}, ScaleKind::none));
      visit(part(".weight_scale", DType::bf16, {rows, cols / int4_group}, ScaleKind::bf16));
      ExpectedTensor said = part(".weight_shape", DType::i64, {2}, ScaleKind::none);
      said.optional = true;
      return visit(said);
    }
  }
}

const StoredTensor* find_tensor(const ExpectedTensor& expected, const WeightSource& source) {
  const StoredTensor* stored = source.find(expected.name);
  if (stored == nullptr && !expected.other_name.empty()) stored = source.find(expected.other_name);
  return stored;
}

Result<ConstTensor> required_tensor(const ExpectedTensor& expected, const WeightSource& source) {
  const StoredTensor* stored = find_tensor(expected, source);
  if (stored == nullptr) return source.required(expected.name, expected.dtype, expected.shape);
  const ConstTensor& tensor = stored->tensor;
  const DType dtype = tensor.dtype == expected.other_dtype ? expected.other_dtype : expected.dtype;
  Shape shape = expected.shape;
  if (expected.spread && tensor.shape != shape) shape = {1};
  if ((expected.one_value || expected.spread) && tensor.shape.rank() <= 1 && tensor.count() == 1)
    shape = tensor.shape;
  if (expected.apart && tensor.shape == Shape{shape[0], 1, shape[1], 1}) shape = tensor.shape;
  if (expected.flat && tensor.shape == Shape{shape[0]}) shape = tensor.shape;
  return source.required(stored->name, dtype, shape);
}

Status spread_scales(const ModelConfig& config, WeightSource& source) {
  Status status;
  visit_expected(config, [&](const ExpectedTensor& expected) {
    if (status.ok() && expected.spread) status = source.spread(expected.name, expected.shape);
  });
  return status;
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> tensors;
  visit_expected(config, [&](ExpectedTensor tensor) {
    if (!tensor.optional) tensors.push_back(std::move(tensor));
  });
  return tensors;
}

std::int64_t active_bytes_per_token(const ModelConfig& config) {
  std::int64_t bytes = 0, expert_bytes = 0;
  visit_expected(config, [&](const ExpectedTensor& tensor) {
    if (tensor.optional) return;
    switch (tensor.use) {
      case TensorUse::whole: bytes += tensor.bytes(); break;
      case TensorUse::one_row: bytes += tensor.bytes() / config.vocab_size; break;
      case TensorUse::experts: expert_bytes += tensor.bytes(); break;
    }
  });
  if (config.num_local_experts > 0)
    bytes += expert_bytes / config.num_local_experts * config.num_experts_per_tok;
  // A tied embedding is read whole as lm_head.
  if (config.tie_word_embeddings) bytes += config.vocab_size * config.hidden_size * 2;
  return bytes;
}

namespace {

// Whether the experts of a layer lie in one tensor, where the architecture has both ways.
void read_stacking(ModelConfig& config, const WeightSource& source) {
  ModelConfig stacked = config;
  stacked.stacked_experts = true;
  bool there = false;
  visit_weights(stacked, [&](const Weight& weight) {
    there = there || (weight.role == WeightRole::expert_gates_ups && source.find(weight.name) != nullptr);
  });
  config.stacked_experts = there;
}

}  // namespace

void read_stored_formats(ModelConfig& config, const WeightSource& source) {
  read_stacking(config, source);
  std::vector<std::pair<std::string, ModuleFormat>> plain;
  visit_weights(config, [&](const Weight& weight) {
    if (!weight.is_matrix() || weight.own_experts > 0 || weight.format == TensorFormat::bf16 ||
        weight.format == TensorFormat::mxfp4_blocks)
      return;
    const StoredTensor* stored = source.find(weight.name + ".weight");
    if (stored != nullptr && stored->tensor.dtype == DType::bf16)
      plain.emplace_back(weight.name, ModuleFormat{});
  });
  config.quantization.set_formats(plain);
}

namespace {

// Whether no scale of any tensor is what its kind must not hold; the threads take pieces of all of them.
bool scales_are_numbers(const ModelConfig& config, const WeightSource& source, ThreadPool& threads) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  struct Piece {
    ScaleKind kind;
    std::span<const std::uint8_t> bytes;
    bool has_nan() const {
      if (kind == ScaleKind::e8m0) return std::memchr(bytes.data(), E8m0::nan_bits, bytes.size()) != nullptr;
      if (kind == ScaleKind::bf16) {
        const auto* values = reinterpret_cast<const Bf16*>(bytes.data());
        return std::any_of(values, values + bytes.size() / sizeof(Bf16), is_not_finite);
      }
      return std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return (byte & 0x7f) == 0x7f; });
    }
  };
  std::vector<Piece> pieces;
  visit_expected(config, [&](const ExpectedTensor& expected) {
    if (!has_block_scales(expected)) return;
    const Result<ConstTensor> tensor = required_tensor(expected, source);
    if (!tensor.ok()) return;
    const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(tensor->data),
                                              tensor->bytes());
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      pieces.push_back({expected.scales, bytes.subspan(at, std::min(piece, bytes.size() - at))});
  });
  std::atomic<bool> numbers = true;
  threads.parallel_for(static_cast<int>(pieces.size()), [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      if (pieces[static_cast<std::size_t>(i)].has_nan()) numbers = false;
    }
  });
  return numbers;
}

void compare(const ModelConfig& config, const WeightSource& source, bool scales_are_read,
             Problems& problems) {
  std::vector<bool> known(source.tensors().size());
  visit_expected(config, [&](const ExpectedTensor& expected) {
    if (Status status = compare_one(config, expected, source, scales_are_read); !status.ok())
      problems.add(std::move(status));
    if (const StoredTensor* stored = find_tensor(expected, source)) {
      known[static_cast<std::size_t>(stored - source.tensors().data())] = true;
    }
  });
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i] || is_left_over(source.tensors()[i].name)) continue;
    if (!left_alone(config, source.tensors()[i].name).empty()) continue;
    problems.add(broken_model("tensor " + quote(source.tensors()[i].name) + " is extra: " +
                              config.architecture + " with this configuration has no such tensor"));
  }
}

}  // namespace

void compare_tensors(const ModelConfig& config, const WeightSource& source, Problems& problems) {
  compare(config, source, false, problems);
}

Status check_tensors(const ModelConfig& config, const WeightSource& source, ThreadPool& threads) {
  Problems problems;
  compare(config, source, scales_are_numbers(config, source, threads), problems);
  return problems.first();
}

}  // namespace nibble
