// Prompts whose inputs of FP8 weights are rounded to FP8, on a GPU or its emulation: beside the CPU's worker
// on the same checkpoint, and bits alone, in chunks, in company and behind answers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/model_traits.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using Fp8PromptsOnTheGpu = OnTheGpu;

std::filesystem::path checkpoint_of(const char* name) { return root / "tests/data/parity" / name; }
unsigned vocabulary_of(const std::filesystem::path& folder) {
  return static_cast<unsigned>(must(read_model_config(folder)).vocab_size);
}

double mean_apart(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} - double{b[i]});
  return sum / static_cast<double>(a.size());
}

// The scores of a prompt by both workers with rounded rows, and by the GPU's without.
struct Scores {
  std::vector<float> found, expected, plain;

  explicit Scores(const std::filesystem::path& folder) {
    const std::vector<TokenId> prompt = random_prompt(1, 90, vocabulary_of(folder));
    const auto scores = [&](const std::unique_ptr<Worker>& worker) {
      return run_alone(*worker, sequence_of(prompt, 64, {3, 7}), 1).prompt_logprobs;
    };
    found = scores(gpu_worker(false, folder, DType::bf16, InputValues::fp8));
    expected = scores(cpu_worker(folder, DType::bf16, InputValues::fp8));
    plain = scores(gpu_worker(false, folder));
  }
};

std::string config_json(const char* architecture, const std::string& fields, const char* left_in_bf16) {
  return R"({"architectures": [")" + std::string(architecture) +
         R"("], "model_type": "qwen3", "hidden_act": "silu",
      "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "max_position_embeddings": 40960,
      "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448, "num_experts": 12,
      "num_experts_per_tok": 3, "tie_word_embeddings": false, )" +
         fields +
         R"(, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate")" +
         left_in_bf16 + "]}}";
}

// Of one layer only q, k and v, whose inputs are the same numbers on both. Others' inputs differ in a last
// bit here and there, and then fall to another code.
TEST_F(Fp8PromptsOnTheGpu, RoundAsTheCpuDoes) {
  const RandomCheckpoint checkpoint(
      config_json("Qwen3MoeForCausalLM",
                  R"("hidden_size": 256, "num_hidden_layers": 1, "moe_intermediate_size": 128,
                  "norm_topk_prob": true, "head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2)",
                  R"(, "model.layers.*.self_attn.o_proj", "model.layers.*.mlp.experts.*")"),
      1);
  const Scores scores(checkpoint.folder());
  EXPECT_GT(mean_apart(scores.found, scores.plain), 0.05);
  EXPECT_LT(mean_apart(scores.found, scores.expected), 0.015);
}

TEST_F(Fp8PromptsOnTheGpu, AreNearTheCpus) {
  for (const char* name : {"qwen3_moe_fp8", "qwen3_moe_fp8_row", "deepseek_v3_fp8"}) {
    SCOPED_TRACE(name);
    const Scores scores(checkpoint_of(name));
    ASSERT_EQ(scores.found.size(), 89u);
    EXPECT_NE(scores.found, scores.plain);
    EXPECT_LT(mean_apart(scores.found, scores.expected), 0.2);
  }
}

TEST_F(Fp8PromptsOnTheGpu, HaveTheSameBitsInChunksInCompanyAndBesideGraphs) {
  // With states, and a shared expert that one row's decode step runs beside the routed ones.
  const RandomCheckpoint with_states(
      config_json("Qwen3_5MoeForCausalLM",
                  R"("hidden_size": 128, "num_hidden_layers": 2, "head_dim": 256, "num_attention_heads": 4,
          "num_key_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
          "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
          "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64)",
                  R"(, "model.layers.*.mlp.shared_expert_gate", "model.layers.*.linear_attn.in_proj_a",
          "model.layers.*.linear_attn.in_proj_b", "model.layers.*.linear_attn.conv1d")"),
      3);
  for (const std::filesystem::path& folder :
       {checkpoint_of("qwen3_moe_fp8"), checkpoint_of("deepseek_v3_fp8"), with_states.folder()}) {
    SCOPED_TRACE(folder);
    const unsigned vocabulary = vocabulary_of(folder);
    const std::unique_ptr<Worker> eager = gpu_worker(false, folder, DType::bf16, InputValues::fp8),
                                  graphs = gpu_worker(true, folder, DType::bf16, InputValues::fp8);
    const std::size_t length = small_cases ? 66 : 150;
    const std::vector<TokenId> prompt = random_prompt(2, length, vocabulary);
    const SamplingParams drawn{.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5};
    const Heard alone = run_alone(*eager, sequence_of(prompt, length, {0, 1, 2}, drawn), 4);
    for (Worker* worker : {eager.get(), graphs.get()}) {
      for (const std::size_t chunk : {1, 16, 33}) {
        if (small_cases && chunk != 33) continue;
        EXPECT_TRUE(run_alone(*worker, sequence_of(prompt, chunk, {5, 2, 3}, drawn), 4) == alone) << chunk;
      }
      // Steps of prompts alone, while another's answer has been begun; then answers together.
      Sequence other = sequence_of(random_prompt(7, 9, vocabulary), 9, {6, 7}),
               longer = sequence_of(random_prompt(8, length + 20, vocabulary), 21, {8, 9, 10}),
               own = sequence_of(prompt, 25, {11, 12, 13}, drawn);
      other.scores = longer.scores = false;
      longer.state = 1, other.state = 2;
      step(*worker, {&other});
      while (own.done < own.prompt) step(*worker, {&own, &longer});
      while (longer.done < longer.prompt) step(*worker, {&longer});
      while (own.heard.tokens.size() < 4) step(*worker, {&own, &longer});
      EXPECT_TRUE(own.heard == alone);
    }
  }
}

TEST_F(Fp8PromptsOnTheGpu, TakeTheRoomThatThePlanSays) {
  for (const char* name : {"Qwen3-30B-A3B", "DeepSeek-V3"}) {
    SCOPED_TRACE(name);
    ModelConfig config = must(read_model_config(root / "tests/data/models" / name));
    config.quantization.format = TensorFormat::fp8_block;
    if (config.quantization.exclude.empty()) config.quantization.exclude = {"lm_head", "*.mlp.gate"};
    const ModelTraits traits = must(traits_of(config, name));
    const auto taken = [&](bool rounds) {
      DeviceArena arena;
      CudaPlace alone{.part = whole_model(config)};
      DecoderCudaBlocks::lay_out(
          config, {.rows = 8192, .logit_rows = 128, .sequences = 128, .rounds_prompts = rounds}, alone, 132,
          arena);
      return static_cast<double>(arena.used());
    };
    const auto planned = [&](bool rounds) {
      return static_cast<double>(workspace_bytes(traits, {.rows = 8192,
                                                          .logit_rows = 128,
                                                          .sequences = 128,
                                                          .positions = 4096,
                                                          .on_gpu = true,
                                                          .fp8_prompts = rounds}));
    };
    EXPECT_GT(taken(true), taken(false));
    EXPECT_NEAR((planned(true) - planned(false)) / (taken(true) - taken(false)), 1.0, 0.01);
  }
}

}  // namespace
}  // namespace nibble
