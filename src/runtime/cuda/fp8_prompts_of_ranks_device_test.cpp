// Prompts whose inputs of FP8 weights are rounded to FP8, on two GPUs or more or on emulated ones. A row has
// one scale, and ranks have whole rows of what they multiply: so their bits are those of one GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/cuda/gpu_ranks_test_util.h"

namespace nibble {
namespace {

using Fp8PromptsOfRanks = OnSeveralGpus;

// Rows of a step that ranks do not share, and of one that they share.
constexpr Size few_rows{100, 4, 160, 8}, many_rows{288, 4, 320, 16};

WorkerLimits limits_of_way(const ModelConfig& config, const Owners& of, const Size& size) {
  WorkerLimits limits = limits_of_owners(config, of, false, size);
  limits.activations = InputValues::fp8;
  return limits;
}

void expect_the_bits_of_one_gpu(std::string_view model, const std::vector<Owners>& ways, const Size& size) {
  SCOPED_TRACE(model);
  const std::filesystem::path folder = root / "tests/data/parity" / model;
  const ModelConfig config = must(read_model_config(folder));
  const auto vocabulary = static_cast<unsigned>(config.vocab_size);
  const std::vector<TokenId> prompt = random_prompt(2, static_cast<std::size_t>(size.rows) - 10, vocabulary);
  const auto prompt_of = [&](int owner, std::size_t chunk) {
    Sequence sequence = sequence_of(prompt, chunk, {5, 2, 3, 1, 4});
    sequence.owner = owner;
    sequence.state = 0;
    return sequence;
  };
  WorkerLimits of_one = limits_of(config, false, size);
  const auto alone_on_one_gpu = [&](InputValues activations) {
    of_one.activations = activations;
    return run_alone(*gpu_worker_of(folder, of_one), prompt_of(0, prompt.size()), 3);
  };
  const Heard expected = alone_on_one_gpu(InputValues::fp8);
  ASSERT_FALSE(expected == alone_on_one_gpu(InputValues::bf16)) << "rounding changes something";
  for (const Owners& of : ways) {
    SCOPED_TRACE(std::to_string(of.ranks) + " ranks, " + std::to_string(of.owners) + " owners");
    const std::unique_ptr<Worker> worker = must(start_ranks(folder, limits_of_way(config, of, size)));
    const int last = of.owners - 1;
    EXPECT_TRUE(run_alone(*worker, prompt_of(last, prompt.size()), 3) == expected);
    EXPECT_TRUE(run_alone(*worker, prompt_of(0, 33), 3) == expected) << "in chunks";
    // Another's prompt in the same steps, of another owner where there is one; then answers together.
    Sequence own = prompt_of(last, 41), other = sequence_of(random_prompt(8, 90, vocabulary), 30, {6, 7});
    other.scores = false;
    other.state = 1;
    while (other.done < other.prompt && own.done < own.prompt) step(*worker, {&other, &own});
    while (other.done < other.prompt) step(*worker, {&other});
    while (own.done < own.prompt) step(*worker, {&own});
    while (own.heard.tokens.size() < expected.tokens.size()) step(*worker, {&other, &own});
    EXPECT_TRUE(own.heard == expected) << "in company";
  }
}

TEST_F(Fp8PromptsOfRanks, HaveTheBitsOfOneGpu) {
  const std::vector<Owners> ways = small_cases
                                       ? std::vector<Owners>{{2, 1}, {2, 2}}
                                       : std::vector<Owners>{{2, 1}, {2, 2}, {2, 2, ExchangeKind::normal}};
  expect_the_bits_of_one_gpu("qwen3_moe_fp8", ways, few_rows);
  expect_the_bits_of_one_gpu("deepseek_v3_fp8", {{2, 1}, {2, 2}}, few_rows);
  if (!small_cases) expect_the_bits_of_one_gpu("qwen3_moe_fp8_row", ways, few_rows);
}

TEST_F(Fp8PromptsOfRanks, HaveThemWhereRanksShareRowsOfAStep) {
  expect_the_bits_of_one_gpu("qwen3_moe_fp8", {{2, 1}}, many_rows);
  if (small_cases) return;
  expect_the_bits_of_one_gpu("qwen3_moe_fp8", {{2, 2}}, many_rows);
  expect_the_bits_of_one_gpu("deepseek_v3_fp8", {{2, 1}, {2, 2}}, many_rows);
  if (devices_ >= 4) expect_the_bits_of_one_gpu("qwen3_moe_fp8", {{4, 2}, {4, 4}}, many_rows);
}

}  // namespace
}  // namespace nibble
