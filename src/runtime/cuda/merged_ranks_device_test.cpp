// On two GPUs or more, or on emulated ones: ranks that merge what they made by NCCL have the bits of one GPU.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/cuda/nccl.h"
#include "runtime/cuda/family_configs.h"
#include "runtime/cuda/gpu_ranks_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

class MergedRanks : public OnSeveralGpus {
 protected:
  void SetUp() override {
    OnSeveralGpus::SetUp();
    if (!IsSkipped() && !nccl_functions().ok()) GTEST_SKIP() << nccl_functions().status().message();
  }

  void expect_the_bits_of_one_gpu(const std::filesystem::path& folder) const {
    nibble::expect_the_bits_of_one_gpu(folder, small_cases ? std::vector{2} : group_sizes(), DType::bf16,
                                       RankGather::by_nccl);
  }
};

// Heads of keys are fewer than four ranks, and experts and vocabulary do not divide evenly.
TEST_F(MergedRanks, GptOssHasTheBitsOfOneGpu) { expect_the_bits_of_one_gpu(example); }

// Layers with states, and a shared expert.
TEST_F(MergedRanks, QwensLayersWithStatesHaveThemToo) {
  const RandomCheckpoint checkpoint(qwen("Qwen3NextForCausalLM", with_experts(mxfp4_experts)), 1);
  expect_the_bits_of_one_gpu(checkpoint.folder());
}

// Dense layers whose columns do not divide evenly, and a shared expert.
TEST_F(MergedRanks, DeepseeksLatentsHaveThemToo) {
  const RandomCheckpoint checkpoint(deepseek(mxfp4_experts, 24), 4);
  expect_the_bits_of_one_gpu(checkpoint.folder());
}

TEST_F(MergedRanks, MatricesInBlocksHaveThemToo) {
  expect_the_bits_of_one_gpu(root / "tests/data/parity/qwen3_moe_fp8");
}

// So many that ranks that store would share them.
TEST_F(MergedRanks, StepsOfManyRowsHaveThemToo) {
  constexpr Size size{288, 2, 320, 10};
  const std::vector<TokenId> prompt = random_prompt(8, 283);
  const ModelConfig config = example_config();
  const auto heard = [&](Worker& worker) {
    return run_alone(worker, sequence_of(prompt, prompt.size(), {5, 2, 3, 1, 7}), 2);
  };
  WorkerLimits limits = limits_of(config, false, size);
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(1);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  const Heard expected = heard(*must(GpuWorker::start(config, upload, limits)));
  limits.ranks = limits.expert_ranks = 2;
  limits.by_nccl = true;
  EXPECT_TRUE(heard(*must(start_ranks(example, limits))) == expected);
}

TEST_F(MergedRanks, AllExpertsOnEachRankHaveThemToo) {
  const std::vector<TokenId> prompt = random_prompt(6, 20);
  const auto heard = [&](Worker& worker) { return run_alone(worker, sequence_of(prompt, 20, {1}), 3); };
  WorkerLimits limits = limits_of_ranks(example_config(), 2, false);
  limits.experts_everywhere = limits.by_nccl = true;
  EXPECT_TRUE(heard(*must(start_ranks(example, limits))) == heard(*gpu_worker(false)));
}

}  // namespace
}  // namespace nibble
