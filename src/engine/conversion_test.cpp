// --quantization over the families with states, latents, dense layers and shared experts: what becomes of
// which matrices, and the bits, which depend on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/test_checkpoint.h"
#include "engine/ranks_test_util.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {
namespace {

// Projections of the delta rule by head of keys, and apart; lm_head apart, and tied; columns that are not
// whole blocks; latents; dense layers.
const std::vector<std::string> families = {"qwen3_next_bf16", "qwen3_5_moe_stacked", "deepseek_v3_bf16",
                                           "glm4_moe_lite"};

// 32 values as --quantization q8 has them: integers of at most 127 times a power of two, the smallest that
// suffices.
void round_block(Bf16* values) {
  float largest = 0, scale = 0x1p-100f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[i].to_float()));
  while (std::nearbyint(largest / scale) > 127) scale *= 2;
  for (int i = 0; i < 32; ++i)
    values[i] = Bf16::from_float(std::nearbyint(values[i].to_float() / scale) * scale);
}

// By the names that the files have.
bool is_rounded(std::string_view name, std::int64_t columns) {
  constexpr std::string_view ends[] = {"self_attn.q_proj.weight",
                                       "self_attn.k_proj.weight",
                                       "self_attn.v_proj.weight",
                                       "self_attn.o_proj.weight",
                                       "self_attn.q_a_proj.weight",
                                       "self_attn.q_b_proj.weight",
                                       "kv_a_proj_with_mqa.weight",
                                       "linear_attn.in_proj_qkvz.weight",
                                       "linear_attn.in_proj_qkv.weight",
                                       "linear_attn.in_proj_z.weight",
                                       "linear_attn.out_proj.weight",
                                       "mlp.gate_proj.weight",
                                       "mlp.up_proj.weight",
                                       "mlp.down_proj.weight",
                                       "shared_expert.gate_proj.weight",
                                       "shared_expert.up_proj.weight",
                                       "shared_expert.down_proj.weight",
                                       "shared_experts.gate_proj.weight",
                                       "shared_experts.up_proj.weight",
                                       "shared_experts.down_proj.weight",
                                       "lm_head.weight"};
  return columns % 32 == 0 && std::any_of(std::begin(ends), std::end(ends),
                                          [&](std::string_view end) { return name.ends_with(end); });
}

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// The checkpoint with those matrices rounded, in bfloat16 still, and with an lm_head of its own. Returns how
// many were rounded.
int write_rounded(const std::filesystem::path& from, const TestFolder& to) {
  std::string config_text = text_of(from / "config.json");
  const std::string tied = "\"tie_word_embeddings\": true", apart = "\"tie_word_embeddings\": false";
  for (std::size_t at = 0; (at = config_text.find(tied, at)) != std::string::npos;)
    config_text.replace(at, tied.size(), apart);
  to.write("config.json", config_text);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    to.write(name, text_of(from / name));
  const WeightSource source = WeightSource::open(from).value();
  int rounded = 0;
  std::vector<TestTensor> tensors;
  for (const ExpectedTensor& expected : expected_tensors(read_model_config(to.path()).value())) {
    const StoredTensor* stored = source.find(expected.name);
    if (stored == nullptr && expected.name == "lm_head.weight") {
      for (const StoredTensor& each : source.tensors()) {
        if (each.name.ends_with("embed_tokens.weight")) stored = &each;
      }
    }
    EXPECT_NE(stored, nullptr) << expected.name;
    if (stored == nullptr) continue;
    TestTensor tensor{.name = expected.name,
                      .dtype = stored->tensor.dtype == DType::f32 ? "F32" : "BF16",
                      .shape = {},
                      .bytes = {}};
    for (int axis = 0; axis < expected.shape.rank(); ++axis) tensor.shape.push_back(expected.shape[axis]);
    tensor.bytes.assign(reinterpret_cast<const char*>(stored->tensor.data), stored->tensor.bytes());
    if (is_rounded(expected.name, tensor.shape.back())) {
      std::vector<Bf16> values(tensor.bytes.size() / sizeof(Bf16));
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      for (std::size_t i = 0; i < values.size(); i += 32) round_block(values.data() + i);
      std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
      ++rounded;
    }
    tensors.push_back(std::move(tensor));
  }
  to.write("model.safetensors", safetensors_file(tensors));
  return rounded;
}

// A power of two may be applied to weights or to their sums, so that the bits are those of the rounded
// matrices, and of no others.
TEST(Conversion, HasTheBitsOfTheMatricesThatAreRoundedByName) {
  for (const std::string& model : families) {
    const TestFolder folder;
    EXPECT_GT(write_rounded(checkpoints / model, folder), 10) << model;
    for (const FloatType dtype : {FloatType::float32, FloatType::bfloat16}) {
      const Answers expected = answers_of(folder.path(), {.threads = 2, .dtype = dtype});
      ASSERT_EQ(expected.size(), 6u);
      EXPECT_EQ(answers_of(model, {.threads = 2, .dtype = dtype, .quantization = Quantization::q8}), expected)
          << model;
      EXPECT_NE(answers_of(model, {.threads = 2, .dtype = dtype}), expected) << model;
    }
  }
}

TEST(Conversion, BitsDependOnNeitherBatchNorChunksNorInstructionsNorRanks) {
  for (const std::string& model : families) {
    for (const EngineOptions& base :
         {EngineOptions{.dtype = FloatType::bfloat16, .quantization = Quantization::q8},
          EngineOptions{.dtype = FloatType::int8, .quantization = Quantization::q8},
          EngineOptions{.dtype = FloatType::float32, .quantization = Quantization::mxfp4}}) {
      EngineOptions alone = base;
      alone.threads = alone.max_num_seqs = alone.max_num_batched_tokens = 1;
      const Answers expected = answers_of(model, alone);
      ASSERT_EQ(expected.size(), 6u);
      const auto check = [&](const EngineOptions& options, const std::string& name) {
        EXPECT_EQ(answers_of(model, options), expected) << model << ", " << name;
      };
      EngineOptions batched = base;
      batched.threads = 3;
      batched.max_num_seqs = 5;
      batched.max_num_batched_tokens = 48;
      check(batched, "in batches");
      batched.max_num_batched_tokens = 200;
      for (const DotKernels& each : dot_kernels()) {
        if (!each.supported()) continue;
        batched.moe_runner_backend = "cpu_" + std::string(each.name);
        check(batched, batched.moe_runner_backend);
      }
      batched.moe_runner_backend = "auto";
      for (const Split& split : {Split{2, 1}, {4, 4, "none"}, {2, 2, "normal"}})
        check(with(batched, split), name_of(model, split));
      batched.expert_parallel = 2;
      batched.dp_attention = true;
      check(batched, "ranks with sequences of their own");
    }
  }
}

}  // namespace
}  // namespace nibble
