// On two GPUs or more, or on emulated ones: a model over ranks has the bits of one GPU.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/gpu_ranks_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using GpuRanks = OnSeveralGpus;

// Heads of keys are fewer than four ranks, and experts and vocabulary do not divide evenly.
TEST_F(GpuRanks, GptOssHasTheBitsOfOneGpu) { expect_the_bits_of_one_gpu(example, group_sizes()); }

#ifndef NIBBLE_GPU_EMULATION  // ranks change nothing about a cache
TEST_F(GpuRanks, GptOssHasThemWithKeysAndValuesInE4m3) {
  expect_the_bits_of_one_gpu(example, {2}, DType::f8_e4m3);
}
#endif

std::string qwen3_moe_with(const std::string& quantization) {
  return R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
      "attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": false,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "max_position_embeddings": 40960,
      "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448, "hidden_size": 192,
      "num_hidden_layers": 2, "num_experts": 12, "num_experts_per_tok": 5, "moe_intermediate_size": 96,
      "head_dim": 128, "num_attention_heads": 8, "num_key_value_heads": 2, "norm_topk_prob": true,
      "tie_word_embeddings": true, "quantization_config": )" +
         quantization + "}";
}

TEST_F(GpuRanks, Qwen3MoeHasTheBitsOfOneGpu) {
  const RandomCheckpoint checkpoint(qwen3_moe_with(R"({"quant_method": "compressed-tensors",
      "format": "nvfp4-pack-quantized", "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"]})"),
                                    9);
  expect_the_bits_of_one_gpu(checkpoint.folder(), small_cases ? std::vector<int>{2} : group_sizes());
}

#ifndef NIBBLE_GPU_EMULATION  // there the expert layer's own tests ask what a format changes
TEST_F(GpuRanks, ExpertsInInt4HaveTheBitsOfOneGpu) {
  const RandomCheckpoint checkpoint(qwen3_moe_with(R"({"quant_method": "compressed-tensors",
      "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
      "type": "int", "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false},
      "input_activations": null}}, "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"]})"),
                                    10);
  expect_the_bits_of_one_gpu(checkpoint.folder(), {2});
}
#endif

// A rank's rows of queries begin within a grid of scales.
TEST_F(GpuRanks, MatricesInBlocksHaveTheBitsOfOneGpu) {
  for (const std::string_view name : {"qwen3_moe_fp8", "qwen3_moe_fp8_row", "qwen3_moe_nvfp4_packed"}) {
    if (small_cases && name == "qwen3_moe_nvfp4_packed") continue;
    expect_the_bits_of_one_gpu(root / "tests/data/parity" / name, {2});
  }
}

// So many that each rank norms, routes and projects some of them; the last rank has fewer than the others.
TEST_F(GpuRanks, RowsOfAStepThatRanksShareHaveTheBitsOfOneGpu) {
  constexpr Size size{288, 2, 320, 10};
  const std::vector<TokenId> prompt = random_prompt(8, 283);
  const ModelConfig config = example_config();
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(1);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  const auto heard = [&](Worker& worker) {
    return run_alone(worker, sequence_of(prompt, prompt.size(), {5, 2, 3, 1, 7}), 2);
  };
  const Heard expected = heard(*must(GpuWorker::start(config, upload, limits_of(config, false, size))));
  for (const int ranks : small_cases ? std::vector<int>{2} : group_sizes()) {
    WorkerLimits limits = limits_of(config, false, size);
    limits.ranks = limits.expert_ranks = ranks;
    limits.gpu_rank_deadline = patient;
    EXPECT_TRUE(heard(*must(start_ranks(example, limits))) == expected) << ranks << " ranks";
  }
}

// Two steps on their way: the second's tokens are where the first leaves them, on every rank.
TEST_F(GpuRanks, AStepBehindAnotherTakesItsTokensOnAllRanks) {
  const std::vector<TokenId> prompt = random_prompt(4, 12);
  const std::unique_ptr<Worker> one = gpu_worker(false), several = ranks_worker(example, 2, true);
  const Heard expected = run_alone(*one, sequence_of(prompt, 12, {1}), 6);
  Sequence sequence = sequence_of(prompt, 12, {1});
  sequence.scores = false;
  step(*several, {&sequence});
  // From here on each step begins before the one ahead is finished.
  std::vector<TokenId> found = sequence.heard.tokens;
  std::vector<Batch> batches(2);
  std::vector<StepResult> results(1);
  const SamplingParams greedy{.temperature = 0};
  const std::vector<PageId> table = {1};
  for (int i = 0; i < 5; ++i) {
    Batch& batch = batches[static_cast<std::size_t>(i % 2)];
    batch = {};
    batch.tokens = {i == 0 ? found.back() : TokenId{0}};
    batch.logit_rows = {{.row = 0}};
    batch.sequences = {{.row_begin = 0,
                        .row_count = 1,
                        .first_position = 12 + i,
                        .pages = {table, table},
                        .sampling = &greedy,
                        .logit_begin = 0,
                        .logit_count = 1,
                        .awaits = i == 0 ? -1 : 0,
                        .samples = true}};
    ASSERT_TRUE(several->forward(batch).ok());
    if (i > 0) {
      ASSERT_TRUE(several->finish(batches[static_cast<std::size_t>((i + 1) % 2)], results).ok());
      found.push_back(results[0].token);
    }
    ASSERT_TRUE(several->choose(batch).ok());
  }
  ASSERT_TRUE(several->finish(batches[0], results).ok());
  found.push_back(results[0].token);
  EXPECT_EQ(found, expected.tokens);
}

#ifndef NIBBLE_GPU_EMULATION  // which would take minutes for so many rows
TEST_F(GpuRanks, StepsOfManyRowsHaveThemToo) {
  const ModelConfig config = example_config();
  const Size size{700, 12, 1024, 24};
  const std::vector<TokenId> prompt = random_prompt(7, 650);
  std::vector<PageId> table(12);
  std::iota(table.begin(), table.end(), 0);
  const auto heard = [&](Worker& worker, std::size_t chunk) {
    return run_alone(worker, sequence_of(prompt, chunk, table), 3);
  };
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(2);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  const Heard expected = heard(*must(GpuWorker::start(config, upload, limits_of(config, false, size))), 650);
  for (const int ranks : group_sizes()) {
    WorkerLimits limits = limits_of(config, false, size);
    limits.ranks = limits.expert_ranks = ranks;
    const std::unique_ptr<Worker> several = must(start_ranks(example, limits));
    for (const std::size_t chunk : {650, 300, 257, 129})
      EXPECT_TRUE(heard(*several, chunk) == expected) << ranks << " ranks, chunks of " << chunk;
  }
}
#endif

TEST_F(GpuRanks, AllExpertsOnEachRankHaveThemToo) {
  const std::vector<TokenId> prompt = random_prompt(6, 20);
  const auto heard = [&](Worker& worker) { return run_alone(worker, sequence_of(prompt, 20, {1}), 3); };
  WorkerLimits limits = limits_of_ranks(example_config(), 2, false);
  limits.experts_everywhere = true;
  const std::unique_ptr<Worker> several = must(start_ranks(example, limits));
  EXPECT_TRUE(heard(*several) == heard(*gpu_worker(false)));
}

TEST_F(GpuRanks, RefusesWhatCannotBeCut) {
  const ModelConfig config = example_config();
  WorkerLimits limits = limits_of_ranks(config, 2, false);
  limits.expert_ranks = 1;
  const Result<std::unique_ptr<Worker>> rows = start_ranks(example, limits);
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(rows.status().message().find("ranks of GPUs have whole experts"), std::string::npos)
      << rows.status().message();
}

}  // namespace
}  // namespace nibble
