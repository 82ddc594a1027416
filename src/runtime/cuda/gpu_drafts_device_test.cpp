// Steps of a GPU's worker that check drafts, on a GPU or on its emulation: what they choose has the bits of
// steps of one row.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "models/cuda/random_weights.h"
#include "ops/gated_delta/delta_state.h"
#include "runtime/cuda/gpu_ranks_test_util.h"
#include "runtime/cuda/gpu_worker_test_util.h"

namespace nibble {
namespace {

using GpuDrafts = OnTheGpu;
using GpuDraftsOfRanks = OnSeveralGpus;

const std::filesystem::path parity = root / "tests/data/parity";

// Few sequences, so that the rows of drafts are more than those.
const int most_drafts = small_cases ? 3 : 8;
constexpr Size few_sequences{160, 3, 512, 24};

std::unique_ptr<Worker> drafting_worker(const std::filesystem::path& folder, bool graphs,
                                        DType kv_dtype = DType::bf16, const Size& size = few_sequences) {
  WorkerLimits limits = limits_of(must(read_model_config(folder)), graphs, size, kv_dtype);
  limits.max_drafts = most_drafts;
  return gpu_worker_of(folder, limits);
}

// What is drafted of a sequence whose answer is known: so many tokens, of which every so many-th of the
// answer is another.
struct Guesses {
  int count = 0, wrong_every = 0;  // 0: none
  std::size_t border = 0;          // of states, which no draft brings there; 0: there are none
};

void guess(Sequence& sequence, const std::vector<TokenId>& answer, const Guesses& guesses) {
  sequence.drafts.clear();
  const std::size_t known = sequence.heard.tokens.size();
  for (std::size_t i = known;
       known > 0 && i + 1 < answer.size() && i < known + static_cast<std::size_t>(guesses.count); ++i) {
    const std::size_t position = sequence.done + 1 + sequence.drafts.size();
    if (guesses.border > 0 && (position + 1) % guesses.border == 0) break;
    const bool wrong = guesses.wrong_every > 0 && i % static_cast<std::size_t>(guesses.wrong_every) == 1;
    sequence.drafts.push_back(wrong ? answer[i] ^ 1 : answer[i]);
  }
}

struct Drafted {
  Heard heard;
  int steps = 0;
};

// `company` steps beside it, without drafts, and leaves room for as many fewer.
Drafted run_drafted(Worker& worker, Sequence sequence, const std::vector<TokenId>& answer,
                    const Guesses& guesses, std::vector<Sequence> company = {}) {
  Drafted ran;
  std::vector<Sequence*> all;
  for (Sequence& other : company) all.push_back(&other);
  all.insert(all.begin() + static_cast<std::ptrdiff_t>(company.size() / 2), &sequence);
  const int room = most_drafts - static_cast<int>(company.size());
  for (; sequence.heard.tokens.size() < answer.size(); ++ran.steps) {
    guess(sequence, answer, {std::min(guesses.count, room), guesses.wrong_every, guesses.border});
    step(worker, all);
  }
  ran.heard = sequence.heard;
  return ran;
}

// Sampled in every way that asks something of a row.
std::vector<SamplingParams> samplings() {
  return {{.temperature = 0},
          {.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5},
          {.temperature = 1,
           .logit_bias = {{7, 2.5f}, {9, -4}},
           .min_tokens = 6,
           .seed = 9,
           .stop_ids = {1, 2, 3}}};
}

void expect_drafts_to_leave_the_bits(const std::filesystem::path& folder, DType kv_dtype = DType::bf16) {
  // The answer crosses into another page.
  const std::size_t length = 61, count = small_cases ? 6 : 24;
  const std::vector<TokenId> prompt = random_prompt(2, length);
  const bool whole = !small_cases || (folder == example && kv_dtype == DType::bf16);
  for (const bool graphs : {false, true}) {
    if (small_cases && graphs != whole) continue;
    const std::unique_ptr<Worker> worker = drafting_worker(folder, graphs, kv_dtype);
    for (const SamplingParams& sampling : samplings()) {
      if (small_cases && sampling.seed != 9) continue;
      const auto asked = [&](std::size_t chunk) { return sequence_of(prompt, chunk, {5, 2, 3}, sampling); };
      const Heard plain = run_alone(*worker, asked(length), count);
      for (const Guesses& guesses :
           {Guesses{most_drafts, 4}, Guesses{most_drafts}, Guesses{2, 2}, Guesses{1}}) {
        SCOPED_TRACE(std::to_string(guesses.count) + " drafts, wrong " + std::to_string(guesses.wrong_every) +
                     ", graphs " + std::to_string(graphs));
        const Drafted alone = run_drafted(*worker, asked(length), plain.tokens, guesses);
        EXPECT_TRUE(alone.heard == plain);
        EXPECT_LT(alone.steps, static_cast<int>(count));
        if (!whole) break;
        if (small_cases && guesses.count != 2) continue;
        // Beside one that decodes, and a prompt that comes in pieces for some of the steps.
        std::vector<Sequence> company = {sequence_of(random_prompt(10, 5), 5, {6, 7}),
                                         sequence_of(random_prompt(11, 30), 7, {8, 9})};
        for (Sequence& other : company) other.scores = false;
        EXPECT_TRUE(run_drafted(*worker, asked(25), plain.tokens, guesses, company).heard == plain);
        if (small_cases) break;
      }
    }
  }
}

TEST_F(GpuDrafts, LeaveTheBitsOfASequence) { expect_drafts_to_leave_the_bits(example); }
TEST_F(GpuDrafts, LeaveThemOnKeysAndValuesInE4m3) {
  expect_drafts_to_leave_the_bits(example, DType::f8_e4m3);
}
// With wide heads, and of latents.
TEST_F(GpuDrafts, LeaveThemWithWideHeads) { expect_drafts_to_leave_the_bits(parity / "qwen3_moe_fp8"); }
TEST_F(GpuDrafts, LeaveThemOfLatents) { expect_drafts_to_leave_the_bits(parity / "deepseek_v3_fp8"); }

// Prompts of lengths whose answers come to a border with the first row of a step, and with what follows
// drafts.
TEST_F(GpuDrafts, LeaveThemBesideStates) {
  for (const bool graphs : {false, true}) {
    if (graphs && small_cases) continue;
    const std::unique_ptr<Worker> worker = drafting_worker(parity / "qwen3_next_bf16", graphs);
    const std::size_t count = small_cases ? 6 : 24;
    for (const std::size_t length : {59, 61, 62, 63}) {
      if (small_cases && length != 61) continue;
      const Sequence asked = sequence_of(random_prompt(2, length), 25, {5, 2, 3}, samplings()[1]);
      const Heard plain = run_alone(*worker, asked, count);
      for (const Guesses& guesses :
           {Guesses{most_drafts, 3, delta_chunk}, {most_drafts, 0, delta_chunk}, {2, 2, delta_chunk}}) {
        SCOPED_TRACE(std::to_string(length) + " tokens, wrong " + std::to_string(guesses.wrong_every) +
                     ", graphs " + std::to_string(graphs));
        const Drafted alone = run_drafted(*worker, asked, plain.tokens, guesses);
        EXPECT_TRUE(alone.heard == plain);
        EXPECT_LT(alone.steps, 3 + static_cast<int>(count) - 1)
            << "three of the prompt, and those of its answer";
        if (small_cases && guesses.wrong_every != 3) continue;
        std::vector<Sequence> company = {sequence_of(random_prompt(10, 5), 5, {6, 7}),
                                         sequence_of(random_prompt(11, 30), 7, {8, 9})};
        for (Sequence& other : company) other.scores = false;
        EXPECT_TRUE(run_drafted(*worker, asked, plain.tokens, guesses, company).heard == plain)
            << "in company";
      }
    }
  }
}

// Several sequences of a step may have some.
TEST_F(GpuDrafts, OfTwoSequencesLeaveTheBitsOfBoth) {
  const std::unique_ptr<Worker> worker = drafting_worker(example, !small_cases);
  const std::size_t count = small_cases ? 5 : 12;
  std::vector<Sequence> sequences = {
      sequence_of(random_prompt(2, 62), 62, {1, 2}),
      sequence_of(random_prompt(3, 9), 9, {3}, {.temperature = 0.9f, .seed = 3})};
  std::vector<Heard> plain;
  for (const Sequence& each : sequences) plain.push_back(run_alone(*worker, each, count));
  while (sequences[0].heard.tokens.size() < count || sequences[1].heard.tokens.size() < count) {
    for (std::size_t i = 0; i < 2; ++i)
      guess(sequences[i], plain[i].tokens,
            {.count = i == 0 ? 1 : most_drafts - 2, .wrong_every = i == 0 ? 4 : 0});
    step(*worker, {&sequences[0], &sequences[1]});
  }
  for (std::size_t i = 0; i < 2; ++i) {
    sequences[i].heard.tokens.resize(count);
    sequences[i].heard.logprobs.resize(count);
    EXPECT_TRUE(sequences[i].heard == plain[i]) << i;
  }
}

// Drafts alone do not keep a step from its graph.
TEST_F(GpuDrafts, AStepOfThemRunsAsAGraph) {
  const std::unique_ptr<Worker> worker = drafting_worker(example, true, DType::bf16, {160, 1, 512, 24});
  const Sequence asked = sequence_of(random_prompt(2, 9), 9, {1});
  const Heard plain = run_alone(*worker, asked, 7);
  const auto graphs = [&] {
    const RanTable ran = worker->ran();
    for (const RanRow& row : ran.rows()) {
      if (row.field == "steps" && row.value == "graph") return row.times;
    }
    return std::uint64_t{0};
  };
  const std::uint64_t before = graphs();
  const Drafted drafted = run_drafted(*worker, asked, plain.tokens, {.count = 3});
  EXPECT_EQ(drafted.steps, 3) << "the prompt's, and two of four tokens";
  EXPECT_EQ(graphs() - before, 2u);
}

// Ranks that share sequences, and ranks that have their own.
TEST_F(GpuDraftsOfRanks, LeaveTheBitsOfOneGpu) {
  const std::vector<TokenId> prompt = random_prompt(2, 62);
  const SamplingParams drawn{.temperature = 0.8f, .seed = 5};
  const std::size_t count = small_cases ? 5 : 16;
  const Heard plain =
      run_alone(*drafting_worker(example, false), sequence_of(prompt, 62, {1, 2}, drawn), count);
  const ModelConfig config = example_config();
  // The emulation takes long for graphs, which a rank runs like a GPU alone.
  const bool graphs = !small_cases;
  for (const Owners& of : {Owners{2, 1}, Owners{2, 2}}) {
    WorkerLimits limits = of.owners > 1 ? limits_of_owners(config, of, graphs, few_sequences)
                                        : limits_of_ranks(config, 2, graphs);
    limits.max_drafts = most_drafts;
    const std::unique_ptr<Worker> worker = must(start_ranks(example, limits));
    for (const Guesses& guesses : {Guesses{most_drafts, 3}, Guesses{2}}) {
      SCOPED_TRACE(std::to_string(of.owners) + " owners, " + std::to_string(guesses.count) + " drafts");
      Sequence asked = sequence_of(prompt, 62, {1, 2}, drawn);
      asked.owner = of.owners - 1;
      std::vector<Sequence> company = {sequence_of(random_prompt(10, 5), 5, {6, 7}),
                                       sequence_of(random_prompt(11, 9), 7, {8, 9})};
      for (Sequence& other : company) other.scores = false;
      EXPECT_TRUE(run_drafted(*worker, asked, plain.tokens, guesses, company).heard == plain) << "in company";
      EXPECT_TRUE(run_drafted(*worker, asked, plain.tokens, guesses).heard == plain) << "alone";
      if (small_cases) break;
    }
  }
}

// gpt-oss-20b's shapes: contexts of one split and of many, within a window and beyond it.
TEST_F(GpuDrafts, LeaveTheBitsAtTheTrueShapes) {
  if (small_cases) GTEST_SKIP() << "needs a GPU";
  const ModelConfig config = must(read_model_config(root / "tests/data/models/gpt-oss-20b"));
  constexpr Size size{2048, 4, 8192, 400};
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    RandomWeights random(1);
    WorkerLimits limits = limits_of(config, true, size, kv_dtype);
    limits.max_drafts = most_drafts;
    const std::unique_ptr<Worker> worker = must(GpuWorker::start(config, random, limits));
    for (const std::size_t length : {100, 1500, 2040, 6000}) {
      const std::vector<TokenId> prompt = random_prompt(2, length, static_cast<unsigned>(config.vocab_size));
      std::vector<PageId> table(128);
      std::iota(table.begin(), table.end(), 7);
      Sequence asked = sequence_of(prompt, 1500, table, {.temperature = 0.8f, .seed = 5});
      asked.scores = false;
      const Heard plain = run_alone(*worker, asked, 40);
      for (int turn = 0; turn < 5; ++turn) {
        for (const Guesses& guesses : {Guesses{most_drafts}, Guesses{most_drafts, 5}, Guesses{3, 7}}) {
          const Drafted drafted = run_drafted(*worker, asked, plain.tokens, guesses);
          EXPECT_TRUE(drafted.heard == plain) << length << " tokens, " << guesses.count << " drafts";
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble
