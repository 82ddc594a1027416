// On two GPUs or more, or on emulated ones: Qwen3-Next's family and DeepSeek-V3's over ranks have the bits of
// one GPU. Their layers with states, latents, shared experts and dense feed-forwards are cut among ranks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cuda/random_weights.h"
#include "models/model_traits.h"
#include "plan/rank_part.h"
#include "runtime/cuda/family_configs.h"
#include "runtime/cuda/gpu_ranks_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using RanksOfFamilies = OnSeveralGpus;

// A rank's part of random weights, each rank making its own.
Status start_with_random_weights(const ModelConfig& config, int ranks) {
  return GpuWorker::start(
             config,
             [&](const CudaPlace& place, int device) {
               RandomWeights random(1);
               return GpuRank::load(config, place, device, random, limits_of_ranks(config, ranks, false));
             },
             limits_of_ranks(config, ranks, false))
      .status();
}

TEST_F(RanksOfFamilies, QwensLayersWithStatesHaveTheBitsOfOneGpu) {
  // Projections by head of keys; then q, k and v, z and gates apart.
  const RandomCheckpoint next(qwen("Qwen3NextForCausalLM", with_experts(mxfp4_experts)), 1),
      later(qwen("Qwen3_5MoeForCausalLM", with_experts(in_bf16)), 2);
  expect_the_bits_of_one_gpu(next.folder(), small_cases ? std::vector{4} : group_sizes());
  expect_the_bits_of_one_gpu(later.folder(), small_cases ? std::vector{2} : group_sizes());
}

TEST_F(RanksOfFamilies, QwensDenseLayersHaveThemToo) {
  const RandomCheckpoint dense(qwen("Qwen3_5ForCausalLM", R"("intermediate_size": 256)"), 3);
  expect_the_bits_of_one_gpu(dense.folder(), small_cases ? std::vector{2} : group_sizes());
}

TEST_F(RanksOfFamilies, DeepseeksLatentsHaveTheBitsOfOneGpu) {
  // Columns of the dense layer do not divide evenly, and heads are no power of two.
  const RandomCheckpoint checkpoint(deepseek(mxfp4_experts, 24), 4);
  expect_the_bits_of_one_gpu(checkpoint.folder(), small_cases ? std::vector{4} : group_sizes());
}

// Queries come from the row itself, and a rank's heads begin within a tile of scales.
TEST_F(RanksOfFamilies, MatricesInFp8HaveThemToo) {
  expect_the_bits_of_one_gpu(root / "tests/data/parity/deepseek_v3_fp8", {2});
}

// So many that each rank norms, routes and takes the shared expert of some of them.
TEST_F(RanksOfFamilies, RowsThatRanksShareHaveTheBitsOfOneGpu) {
  constexpr Size size{288, 2, 320, 10};
  const std::vector<TokenId> prompt = random_prompt(8, 283);
  const auto heard = [&](Worker& worker) {
    return run_alone(worker, sequence_of(prompt, prompt.size(), {5, 2, 3, 1, 7}), 2);
  };
  const RandomCheckpoint states(qwen("Qwen3NextForCausalLM", with_experts(mxfp4_experts)), 5),
      latents(deepseek(mxfp4_experts), 6);
  for (const RandomCheckpoint* checkpoint : {&states, &latents}) {
    const ModelConfig config = must(read_model_config(checkpoint->folder()));
    const WeightSource source = must(WeightSource::open(checkpoint->folder()));
    ThreadPool threads(1);
    WeightUpload upload = must(WeightUpload::begin(source, threads));
    const Heard expected = heard(*must(GpuWorker::start(config, upload, limits_of(config, false, size))));
    for (const int ranks : small_cases ? std::vector{2} : group_sizes()) {
      WorkerLimits limits = limits_of(config, false, size);
      limits.ranks = limits.expert_ranks = ranks;
      limits.gpu_rank_deadline = patient;
      EXPECT_TRUE(heard(*must(start_ranks(checkpoint->folder(), limits))) == expected) << ranks << " ranks";
    }
  }
}

// A sequence leaves a snapshot of its heads' states on each rank, and another goes on from there.
TEST_F(RanksOfFamilies, GoOnFromSnapshotsWithTheBitsOfOneGpu) {
  const RandomCheckpoint checkpoint(qwen("Qwen3NextForCausalLM", with_experts(mxfp4_experts)), 7);
  const std::vector<TokenId> prompt = random_prompt(3, 67);
  Sequence alone = sequence_of(prompt, prompt.size(), {4, 5, 6});
  alone.scores = false;
  const Heard expected = run_alone(*gpu_worker(false, checkpoint.folder()), alone, 2);
  const std::unique_ptr<Worker> several = ranks_worker(checkpoint.folder(), 2, false);
  const StateSnapshot kept[] = {{64, 1}};
  std::vector<StepResult> results(1);
  Sequence first = alone;
  Batch batch = batch_of({&first});
  batch.sequences[0].snapshots = kept;
  const Status left = several->run(batch, results);
  ASSERT_TRUE(left.ok()) << left.message();
  Sequence other = sequence_of(prompt, prompt.size(), {4, 7, 8});
  other.scores = false;
  other.done = 64;
  batch = batch_of({&other});
  batch.sequences[0].resumes = kept[0].slot;
  const Status resumed = several->run(batch, results);
  ASSERT_TRUE(resumed.ok()) << resumed.message();
  EXPECT_EQ(results[0].token, expected.tokens[0]);
  EXPECT_EQ(results[0].logprob, expected.logprobs[0]);
  other.done = other.prompt;
  other.tokens.push_back(results[0].token);
  step(*several, {&other});
  EXPECT_EQ(other.heard.tokens[0], expected.tokens[1]);
  EXPECT_EQ(other.heard.logprobs[0], expected.logprobs[1]);
}

// What a rank has in memory follows from the plan's numbers, also of groups with sequences of their own.
TEST_F(RanksOfFamilies, ARanksMemoryIsWhatThePlanSays) {
  constexpr int ranks = 4, processors = 132, rows = 8192, sequences = 128;
  // Of the second model's heads a quarter fill groups up, which the plan leaves out.
  for (const auto& [name, apart] : {std::pair("Qwen3.6-35B-A3B", 0.01),
                                    {"Qwen3.6-27B", 0.04},
                                    {"DeepSeek-V3", 0.01},
                                    {"GLM-4.7-Flash", 0.01}}) {
    SCOPED_TRACE(name);
    ModelConfig config = must(read_model_config(root / "tests/data/models" / name));
    config.stacked_experts = false;
    config.quantization.format = TensorFormat::nvfp4;
    config.quantization.exclude = {"lm_head", "*.mlp.gate", "*.self_attn.*", "*.linear_attn.*",
                                   "*.shared_expert*"};
    const ModelTraits traits = must(traits_of(config, name));
    for (const int owners : {1, 2, ranks}) {
      if (owners > 1 && config.num_local_experts == 0) continue;
      SCOPED_TRACE(owners);
      const int sharers = ranks / owners;
      const CudaPart part = must(cuda_part(
          config, owners > 1 ? owner_part(traits, ranks, owners, 1) : rank_part(traits, ranks, ranks, 1),
          false));
      DeviceArena weights, room;
      DecoderCudaWeights::lay_out(config, part, weights);
      const std::int64_t planned_weights =
          (owners > 1 ? owner_weight_bytes(traits, Quantization::none, ranks, owners)
                      : weight_bytes(traits, Quantization::none, ranks)) +
          whole_weight_bytes(traits, sharers);
      EXPECT_NEAR(static_cast<double>(planned_weights) / static_cast<double>(weights.used()), 1.0, apart);
      const int own_rows = rows / owners, own_sequences = sequences / owners;
      const ExchangeKind exchange = owners > 1 ? ExchangeKind::low_latency : ExchangeKind::none;
      CudaPlace place{.part = part};
      DecoderCudaBlocks::lay_out(
          config,
          {.rows = own_rows, .logit_rows = sequences, .sequences = own_sequences, .exchange = exchange},
          place, processors, room);
      WorkerLimits limits = limits_of(config, true, {own_rows, own_sequences, 32768, 0});
      limits.max_logit_rows = sequences;
      // Where ranks have the same sequences, the sampler takes its logits from where they gather them.
      const std::size_t gathered = sharers == 1 ? 0 : static_cast<std::size_t>(sequences * config.vocab_size);
      const std::size_t taken = room.used() + place.shared.used() + place.shared_by_all.used() +
                                GpuSampler::device_bytes(limits, static_cast<int>(config.vocab_size)) -
                                gathered * sizeof(float);
      const double planned = static_cast<double>(workspace_bytes(traits, {.rows = own_rows,
                                                                          .logit_rows = sequences,
                                                                          .sequences = own_sequences,
                                                                          .positions = 32768,
                                                                          .ranks = ranks,
                                                                          .owners = owners,
                                                                          .expert_ranks = ranks,
                                                                          .exchange = exchange,
                                                                          .on_gpu = true}));
      EXPECT_NEAR(planned / static_cast<double>(taken), 1.0, 0.01);
    }
  }
}

TEST_F(RanksOfFamilies, RefuseWhatCannotBeCut) {
  const RandomCheckpoint states(qwen("Qwen3_5MoeForCausalLM", with_experts(in_bf16)), 8),
      latents(deepseek(in_bf16, 2), 9);
  ModelConfig few = must(read_model_config(states.folder())), narrow = few,
              heads = must(read_model_config(latents.folder()));
  few.delta.key_heads = 1;
  narrow.delta.value_heads = 4;
  for (const auto& [config, ranks, what] :
       {std::tuple(few, 2, "1 heads of keys of its gated delta rule do not divide among 2 ranks"),
        std::tuple(narrow, 4, "would have 32 columns of what the gated delta rule gives"),
        std::tuple(heads, 2, "would have 32 columns of what latent attention gives")}) {
    if (ranks > devices_) continue;
    const Status status = start_with_random_weights(config, ranks);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace nibble
