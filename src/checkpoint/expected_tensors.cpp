#include "checkpoint/expected_tensors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>

#include "base/quote.h"
#include "formats/e8m0.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

using Visit = std::function<void(ExpectedTensor)>;

// A linear layer [rows, cols] in bf16, with its bias where there is one.
void visit_linear(const std::string& name, std::int64_t rows, std::int64_t cols, bool bias,
                  const Visit& visit) {
  visit({.name = name + ".weight", .shape = {rows, cols}});
  if (bias) visit({.name = name + ".bias", .shape = {rows}});
}

// Every expert's matrix [rows, cols] in MXFP4, with a bias in bf16.
void visit_experts(const std::string& name, std::int64_t experts, std::int64_t rows, std::int64_t cols,
                   const Visit& visit) {
  const std::int64_t blocks = cols / mxfp4_block;
  visit({.name = name + "_blocks",
         .dtype = DType::u8,
         .shape = {experts, rows, blocks, mxfp4_block_bytes},
         .use = TensorUse::experts,
         .by_expert = true});
  visit({.name = name + "_scales",
         .dtype = DType::u8,
         .shape = {experts, rows, blocks},
         .use = TensorUse::experts,
         .by_expert = true,
         .e8m0_scales = true});
  visit({.name = name + "_bias", .shape = {experts, rows}, .use = TensorUse::experts, .by_expert = true});
}

// One layer of gpt-oss.
void visit_gpt_oss_layer(const ModelConfig& config, std::int64_t layer, const Visit& visit) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_rows = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const bool bias = config.attention_bias;
  visit({.name = prefix + "input_layernorm.weight", .shape = {hidden}});
  visit_linear(prefix + "self_attn.q_proj", q_rows, hidden, bias, visit);
  visit_linear(prefix + "self_attn.k_proj", kv_rows, hidden, bias, visit);
  visit_linear(prefix + "self_attn.v_proj", kv_rows, hidden, bias, visit);
  visit({.name = prefix + "self_attn.sinks", .shape = {config.num_attention_heads}});
  visit_linear(prefix + "self_attn.o_proj", hidden, q_rows, bias, visit);
  visit({.name = prefix + "post_attention_layernorm.weight", .shape = {hidden}});
  const std::int64_t experts = config.num_local_experts;
  visit({.name = prefix + "mlp.router.weight", .shape = {experts, hidden}, .by_expert = true});
  visit({.name = prefix + "mlp.router.bias", .shape = {experts}, .by_expert = true});
  visit_experts(prefix + "mlp.experts.gate_up_proj", experts, 2 * config.intermediate_size, hidden, visit);
  visit_experts(prefix + "mlp.experts.down_proj", experts, hidden, config.intermediate_size, visit);
}

// Visits instead of returning a list, so that a small file with a configuration of a thousand layers
// costs no memory before it is refused.
void visit_expected(const ModelConfig& config, const Visit& visit) {
  visit({.name = "model.embed_tokens.weight",
         .shape = {config.vocab_size, config.hidden_size},
         .use = TensorUse::one_row});
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    visit_gpt_oss_layer(config, layer, visit);
  visit({.name = "model.norm.weight", .shape = {config.hidden_size}});
  if (!config.tie_word_embeddings)
    visit({.name = "lm_head.weight", .shape = {config.vocab_size, config.hidden_size}});
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

Status check_scales(std::string_view name, const ConstTensor& scales) {
  const auto bytes = scales.as<std::uint8_t>();
  if (bytes.empty()) return {};
  const void* found = std::memchr(bytes.data(), E8m0::nan_bits, bytes.size());
  if (found == nullptr) return {};
  const std::int64_t position = static_cast<const std::uint8_t*>(found) - bytes.data();
  const auto count = std::count(bytes.begin(), bytes.end(), E8m0::nan_bits);
  return broken_model("tensor " + quote(name) + " holds " + std::to_string(count) +
                      " scale bytes of 255, which is NaN, the first at " +
                      index_text(scales.shape, position));
}

// scales_are_read: somebody has looked at them, and none is NaN.
Status compare_one(const ModelConfig& config, const ExpectedTensor& expected, const WeightSource& source,
                   bool scales_are_read) {
  Result<ConstTensor> tensor = source.required(expected.name, expected.dtype, expected.shape);
  if (tensor.ok())
    return expected.e8m0_scales && !scales_are_read ? check_scales(expected.name, *tensor) : Status();
  const StoredTensor* stored = source.find(expected.name);
  if (stored != nullptr && expected.by_expert && stored->tensor.dtype == expected.dtype &&
      stored->tensor.shape.rank() == expected.shape.rank() && stored->tensor.shape[0] != expected.shape[0]) {
    return broken_model(
        "tensor " + quote(expected.name) + " holds " + std::to_string(stored->tensor.shape[0]) +
        " experts, but num_local_experts of config.json is " + std::to_string(config.num_local_experts));
  }
  return tensor.status();
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> tensors;
  visit_expected(config, [&](ExpectedTensor tensor) { tensors.push_back(std::move(tensor)); });
  return tensors;
}

std::int64_t active_bytes_per_token(const ModelConfig& config) {
  std::int64_t bytes = 0;
  visit_expected(config, [&](const ExpectedTensor& tensor) {
    switch (tensor.use) {
      case TensorUse::whole: bytes += tensor.bytes(); break;
      case TensorUse::one_row: bytes += tensor.bytes() / config.vocab_size; break;
      case TensorUse::experts:
        bytes += tensor.bytes() / config.num_local_experts * config.num_experts_per_tok;
        break;
    }
  });
  // A tied embedding is read whole as lm_head.
  if (config.tie_word_embeddings) bytes += config.vocab_size * config.hidden_size * 2;
  return bytes;
}

namespace {

// Whether no scale of any tensor is NaN; the threads take pieces of all of them.
bool scales_are_numbers(const ModelConfig& config, const WeightSource& source, ThreadPool& threads) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  std::vector<std::span<const std::uint8_t>> pieces;
  visit_expected(config, [&](const ExpectedTensor& expected) {
    if (!expected.e8m0_scales) return;
    const Result<ConstTensor> tensor = source.required(expected.name, expected.dtype, expected.shape);
    if (!tensor.ok()) return;
    const auto bytes = tensor->as<std::uint8_t>();
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      pieces.push_back(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  });
  std::atomic<bool> numbers = true;
  threads.parallel_for(static_cast<int>(pieces.size()), [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const std::span<const std::uint8_t> bytes = pieces[static_cast<std::size_t>(i)];
      if (std::memchr(bytes.data(), E8m0::nan_bits, bytes.size()) != nullptr) numbers = false;
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
    if (const StoredTensor* stored = source.find(expected.name)) {
      known[static_cast<std::size_t>(stored - source.tensors().data())] = true;
    }
  });
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i]) continue;
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
