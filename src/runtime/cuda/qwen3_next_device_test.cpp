// Qwen3-Next and Qwen3.5 on a GPU, or on its emulation: beside the CPU's worker on the same checkpoint, and
// bits alone, in batches, in chunks, in graphs and behind snapshots of states.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cuda/random_weights.h"
#include "models/model_traits.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using Qwen3NextOnTheGpu = OnTheGpu;

constexpr const char* left_in_bf16 =
    R"("lm_head", "re:.*mlp.gate$", "re:.*self_attn.*", "re:.*linear_attn.*", "re:.*shared_expert.*")";

std::string mxfp4_experts() {
  return R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": [)" +
         std::string(left_in_bf16) + "]}";
}
std::string nvfp4_experts() {
  return R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": [)" +
         std::string(left_in_bf16) + "]}";
}
// All but gates, router and lm_head.
constexpr const char* fp8_blocks = R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate",
      "model.layers.*.mlp.shared_expert_gate", "model.layers.*.linear_attn.in_proj_a",
      "model.layers.*.linear_attn.in_proj_b", "model.layers.*.linear_attn.conv1d"]})";

// Three layers: two with the rule, one of attention with heads of 256.
std::string config_json(const std::string& quantization, bool is_next = false) {
  const std::string architecture = is_next ? "Qwen3NextForCausalLM" : "Qwen3_5MoeForCausalLM";
  return R"({"architectures": [")" + architecture + R"("], "model_type": "qwen3_next", "hidden_act": "silu",
      "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
      "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448,
      "hidden_size": 128, "num_hidden_layers": 3, "head_dim": 256, "num_attention_heads": 4,
      "num_key_value_heads": 2, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 12, "num_experts_per_tok": 3,
      "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "tie_word_embeddings": false,
      "quantization_config": )" +
         quantization + "}";
}

TEST_F(Qwen3NextOnTheGpu, AgreesWithTheCpu) {
  for (const auto& [quantization, is_next] :
       {std::pair(mxfp4_experts(), true), std::pair(std::string(fp8_blocks), false)}) {
    SCOPED_TRACE(quantization);
    const RandomCheckpoint checkpoint(config_json(quantization, is_next), 1);
    expect_the_cpus_answer(checkpoint.folder(), DType::bf16, {0.3, 0.03});
  }
}

TEST_F(Qwen3NextOnTheGpu, ASequencesBitsDependNeitherOnChunksNorOnCompanyNorOnGraphs) {
  const RandomCheckpoint checkpoint(config_json(nvfp4_experts()), 3);
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
}

// One sequence leaves snapshots at its borders, others go on from them on its pages.
TEST_F(Qwen3NextOnTheGpu, GoesOnFromSnapshotsWithTheSameBits) {
  const RandomCheckpoint checkpoint(config_json(mxfp4_experts()), 4);
  const std::unique_ptr<Worker> worker = gpu_worker(true, checkpoint.folder());
  const std::vector<TokenId> prompt = random_prompt(3, 131);
  Sequence first = sequence_of(prompt, 66, {4, 5, 6});
  first.scores = false;
  const StateSnapshot kept[] = {{64, 1}, {128, 0}};
  std::vector<StepResult> results(1);
  for (std::size_t i = 0; i < 2; ++i) {  // up to 66, then all
    Batch batch = batch_of({&first});
    batch.sequences[0].snapshots = std::span(kept).subspan(i, 1);
    const Status status = worker->run(batch, results);
    ASSERT_TRUE(status.ok()) << status.message();
    first.done += static_cast<std::size_t>(batch.sequences[0].row_count);
  }
  first.tokens.push_back(results[0].token);
  first.heard.tokens.push_back(results[0].token);
  first.heard.logprobs.push_back(results[0].logprob);
  while (first.heard.tokens.size() < 4) step(*worker, {&first});
  for (const StateSnapshot& snapshot : kept) {
    Sequence other = sequence_of(prompt, 200, {4, 7, 8});
    if (snapshot.position == 128) other.table = {4, 5, 8};
    other.scores = false;
    other.done = static_cast<std::size_t>(snapshot.position);
    Batch batch = batch_of({&other});
    batch.sequences[0].resumes = snapshot.slot;
    const Status status = worker->run(batch, results);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(results[0].token, first.heard.tokens[0]) << snapshot.position;
    EXPECT_EQ(results[0].logprob, first.heard.logprobs[0]) << snapshot.position;
    other.done = other.prompt;
    other.tokens.push_back(results[0].token);
    step(*worker, {&other});
    EXPECT_EQ(other.heard.logprobs[0], first.heard.logprobs[1]) << snapshot.position;
  }
}

TEST_F(Qwen3NextOnTheGpu, WhatAStepTakesIsWhatThePlanSays) {
  ModelConfig config = must(read_model_config(root / "tests/data/models/Qwen3.6-35B-A3B"));
  config.stacked_experts = false;
  config.quantization.format = TensorFormat::mxfp4_packed;
  config.quantization.exclude = {"lm_head", "*.mlp.gate", "*.self_attn.*", "*.linear_attn.*",
                                 "*.shared_expert*"};
  const ModelTraits traits = must(traits_of(config, "Qwen3.6-35B-A3B"));
  expect_a_step_to_take_what_is_planned(config, traits, 40960);
  DeviceArena weights;
  DecoderCudaWeights::lay_out(config, whole_model(config), weights);
  EXPECT_NEAR(
      static_cast<double>(weight_bytes(traits, Quantization::none, 1)) / static_cast<double>(weights.used()),
      1.0, 0.005);
}

TEST_F(Qwen3NextOnTheGpu, RefusesWhatNoKernelTakes) {
  ModelConfig heads = must(read_model_config(root / "tests/data/parity/qwen3_5_moe_stacked")), rotary = heads;
  heads.delta.key_dim = 64;
  rotary.rotary_dim = 48;
  for (const auto& [config, what] : {std::pair(heads, "heads of 64 dimensions for keys and 32 for values"),
                                     std::pair(rotary, "48 dimensions of its heads are rotated")}) {
    RandomWeights random(1);
    const Result<std::unique_ptr<Worker>> worker = GpuWorker::start(config, random, limits_of(config, false));
    ASSERT_FALSE(worker.ok()) << what;
    EXPECT_NE(worker.status().message().find(what), std::string::npos) << worker.status().message();
  }
}

}  // namespace
}  // namespace nibble
