// On two GPUs or more, or on emulated ones: ranks that have sequences of their own, and share experts alone,
// give the bits of one GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/family_configs.h"
#include "runtime/cuda/gpu_ranks_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using GpuOwners = OnSeveralGpus;

std::vector<int> sizes(const std::vector<int>& all) { return small_cases ? std::vector<int>{2} : all; }
constexpr Owners two_groups{4, 2};

TEST_F(GpuOwners, OfGptOssHaveTheBitsOfOneGpu) {
  expect_owners_to_have_the_bits_of_one_gpu(example, owners_of_each(group_sizes()));
}

// Few rows go straight to their places, too.
TEST_F(GpuOwners, OfGptOssHaveThemWithoutWindows) {
  expect_owners_to_have_the_bits_of_one_gpu(example, {{2, 2, ExchangeKind::normal}});
}

// Experts in FP8 are multiplied by other kernels.
TEST_F(GpuOwners, OfQwen3MoeInFp8HaveThemToo) {
  for (const std::string_view name : {"qwen3_moe_fp8", "qwen3_moe_fp8_row"}) {
    if (small_cases && name == "qwen3_moe_fp8") continue;
    expect_owners_to_have_the_bits_of_one_gpu(root / "tests/data/parity" / name,
                                              owners_of_each(sizes(group_sizes())));
  }
}

// States, and a shared expert.
TEST_F(GpuOwners, OfQwen3NextHaveThemToo) {
  expect_owners_to_have_the_bits_of_one_gpu(root / "tests/data/parity/qwen3_next_bf16",
                                            owners_of_each(sizes(group_sizes())));
}

// Latents, a dense layer, a router with groups.
TEST_F(GpuOwners, OfDeepseekHaveThemToo) {
  expect_owners_to_have_the_bits_of_one_gpu(root / "tests/data/parity/deepseek_v3_fp8",
                                            owners_of_each(sizes(group_sizes())));
}

// A prompt of so many rows that experts take them by their kernel for many, beside another owner's answer.
void expect_a_prompt_among_answers_to_have_the_bits_of_one_gpu(const std::vector<Owners>& ways, bool graphs) {
  constexpr Size size{288, 2, 320, 10};
  const ModelConfig config = example_config();
  const std::vector<TokenId> prompt = random_prompt(8, 283), other = random_prompt(9, 7);
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(1);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  const std::unique_ptr<Worker> one = must(GpuWorker::start(config, upload, limits_of(config, false, size)));
  const Heard expected = run_alone(*one, sequence_of(prompt, prompt.size(), {5, 2, 3, 1, 7}), 2);
  const Heard expected_other = run_alone(*one, sequence_of(other, other.size(), {4}), 3);
  for (const Owners& of : ways) {
    const std::unique_ptr<Worker> worker =
        must(start_ranks(example, limits_of_owners(config, of, graphs, size)));
    Sequence decoding = sequence_of(other, other.size(), {4}),
             read = sequence_of(prompt, 283, {5, 2, 3, 1, 7});
    decoding.owner = of.owners - 1;
    step(*worker, {&decoding});
    for (int i = 0; i < 2; ++i) step(*worker, {&decoding, &read});
    EXPECT_TRUE(read.heard == expected) << of.ranks << " ranks";
    EXPECT_TRUE(decoding.heard == expected_other) << of.ranks << " ranks";
  }
}

TEST_F(GpuOwners, OfAPromptAmongAnswersHaveTheBitsOfOneGpu) {
  expect_a_prompt_among_answers_to_have_the_bits_of_one_gpu(owners_of_each(sizes(group_sizes())), true);
}

// Two steps on their way: each rank's tokens are where its own sampling leaves them.
TEST_F(GpuOwners, AStepBehindAnotherTakesItsTokensOnEachRank) {
  const std::vector<TokenId> prompts[] = {random_prompt(4, 12), random_prompt(5, 9)};
  const ModelConfig config = example_config();
  const std::unique_ptr<Worker> one = gpu_worker(false),
                                several = must(start_ranks(example, limits_of_owners(config, {2, 2}, true)));
  const SamplingParams greedy{.temperature = 0};
  std::vector<std::vector<TokenId>> expected, found;
  std::vector<std::vector<PageId>> tables = {{1}, {2}};
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < 2; ++i) {
    expected.push_back(run_alone(*one, sequence_of(prompts[i], 12, tables[i]), 6).tokens);
    sequences.push_back(sequence_of(prompts[i], 12, tables[i]));
    sequences[i].scores = false;
    sequences[i].owner = static_cast<int>(1 - i);
  }
  step(*several, {&sequences[0], &sequences[1]});
  for (const Sequence& sequence : sequences) found.push_back(sequence.heard.tokens);
  std::vector<Batch> batches(2);
  std::vector<StepResult> results(2);
  const auto finish = [&](const Batch& batch) {
    ASSERT_TRUE(several->finish(batch, results).ok());
    for (std::size_t i = 0; i < 2; ++i)
      found[static_cast<std::size_t>(1 - batch.sequences[i].owner)].push_back(results[i].token);
  };
  for (int i = 0; i < 5; ++i) {
    // Sequences take turns in a step's order.
    Batch& batch = batches[static_cast<std::size_t>(i % 2)];
    batch = {};
    for (int place = 0; place < 2; ++place) {
      const std::size_t which = static_cast<std::size_t>((place + i) % 2);
      batch.tokens.push_back(i == 0 ? found[which].back() : TokenId{0});
      batch.logit_rows.push_back({.row = place});
      batch.sequences.push_back({.owner = sequences[which].owner,
                                 .row_begin = place,
                                 .row_count = 1,
                                 .first_position = static_cast<int>(prompts[which].size()) + i,
                                 .pages = {tables[which], tables[which]},
                                 .sampling = &greedy,
                                 .logit_begin = place,
                                 .logit_count = 1,
                                 .awaits = i == 0 ? -1 : 1 - place,
                                 .samples = true});
    }
    ASSERT_TRUE(several->forward(batch).ok());
    if (i > 0) finish(batches[static_cast<std::size_t>((i + 1) % 2)]);
    ASSERT_TRUE(several->choose(batch).ok());
  }
  finish(batches[0]);
  EXPECT_EQ(found, expected);
}

// Two groups of two ranks, which divide heads, states and columns.
TEST_F(GpuOwners, InGroupsHaveThemToo) {
  if (devices_ < 4) GTEST_SKIP() << "two groups of two ranks need four GPUs";
  std::vector<Owners> ways = {two_groups};
  if (!small_cases) ways.push_back({4, 2, ExchangeKind::normal});
  expect_owners_to_have_the_bits_of_one_gpu(example, ways);
  if (small_cases) return;
  const RandomCheckpoint states(qwen("Qwen3NextForCausalLM", with_experts(mxfp4_experts)), 1),
      latents(deepseek(mxfp4_experts), 2);
  for (const RandomCheckpoint* family : {&states, &latents})
    expect_owners_to_have_the_bits_of_one_gpu(family->folder(), {two_groups});
}

// The ranks of a group share the rows of its prompt; those of the other group have hardly any.
TEST_F(GpuOwners, InGroupsShareTheRowsOfAPrompt) {
  if (devices_ < 4) GTEST_SKIP() << "two groups of two ranks need four GPUs";
  expect_a_prompt_among_answers_to_have_the_bits_of_one_gpu({two_groups}, false);
}

}  // namespace
}  // namespace nibble
