// A tiny Qwen3-MoE for tests: its config, and a checkpoint as the config asks for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/weight_source.h"

namespace nibble {

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// hidden 64, 1 layer, 2 query heads and 1 key head of 32, 2 experts top-1 of width 32, vocabulary 48.
class Qwen {
 public:
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"Qwen3MoeForCausalLM\"]"},
      {"vocab_size", "48"},
      {"hidden_size", "64"},
      {"num_hidden_layers", "1"},
      {"max_position_embeddings", "4096"},
      {"rms_norm_eps", "1e-6"},
      {"num_attention_heads", "2"},
      {"num_key_value_heads", "1"},
      {"head_dim", "32"},
      {"rope_theta", "1000000.0"},
      {"num_experts", "2"},
      {"num_experts_per_tok", "1"},
      {"moe_intermediate_size", "32"},
      {"norm_topk_prob", "true"},
      {"eos_token_id", "40"},
  };
  std::string beside;  // hf_quant_config.json

  std::string config() const {
    std::string text;
    for (const auto& [name, value] : fields) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + value;
    return text + "}";
  }
  Result<ModelConfig> read() const { return parse_model_config(config(), {}, beside); }
  std::string refused() const {
    const Result<ModelConfig> read_config = read();
    EXPECT_FALSE(read_config.ok());
    EXPECT_EQ(read_config.status().exit_code(), 3);
    return read_config.status().message();
  }
};

inline std::string refused_with(const std::string& field, const std::string& json) {
  Qwen model;
  model.fields[field] = json;
  return model.refused();
}

struct Written {
  Qwen model;
  std::vector<TestTensor> tensors;
  TestFolder folder;

  // Every tensor that is asked for, of bytes that are ones as bf16 or as scales.
  explicit Written(const std::string& quantization, const std::map<std::string, std::string>& changed = {}) {
    for (const auto& [field, value] : changed) model.fields[field] = value;
    if (!quantization.empty()) model.fields["quantization_config"] = quantization;
    for (const ExpectedTensor& tensor : expected_tensors(model.read().value())) add(tensor);
  }
  void add(const ExpectedTensor& tensor) {
    const std::string pattern = tensor.dtype == DType::f32    ? std::string("\0\0\x80\x3f", 4)
                                : tensor.dtype == DType::bf16 ? std::string("\x80\x3f", 2)
                                                              : std::string("\x38", 1);
    TestTensor made{.name = tensor.name};
    made.dtype = tensor.dtype == DType::f32    ? "F32"
                 : tensor.dtype == DType::bf16 ? "BF16"
                 : tensor.dtype == DType::u8   ? "U8"
                                               : "F8_E4M3";
    for (const std::int64_t extent : tensor.shape.extents()) made.shape.push_back(extent);
    for (std::int64_t i = 0; i < tensor.shape.count(); ++i) made.bytes += pattern;
    tensors.push_back(std::move(made));
  }
  TestTensor& tensor(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const TestTensor& each) { return each.name == name; });
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }
  Status check() {
    folder.write("config.json", model.config());
    folder.write("model.safetensors", safetensors_file(tensors));
    ModelConfig config = read_model_config(folder.path()).value();
    const WeightSource source = WeightSource::open(folder.path()).value();
    read_stored_formats(config, source);
    ThreadPool threads(2);
    return check_tensors(config, source, threads);
  }
};

}  // namespace nibble
