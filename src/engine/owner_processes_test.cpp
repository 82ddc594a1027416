// Groups of a CPU's ranks that have sequences of their own give the bits of one rank in several processes
// too: groups within a process, several to a process, and across processes; in all exchanges, batches and
// chunkings, behind prefixes, preemptions and drafts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/drafts_test_util.h"
#include "engine/processes_test_util.h"
#include "engine/ranks_test_util.h"
#include "models/model_traits.h"
#include "plan/rules.h"

namespace nibble {
namespace {

struct Layout {
  int processes, ranks, owners;
  std::string exchange;
};
const Layout alone_each{2, 2, 2, "normal"}, two_a_process{2, 4, 4, "low_latency"},
    a_group_a_process{2, 4, 2, "normal"}, groups_across{4, 4, 2, "low_latency"};
const std::vector<Layout> layouts = {alone_each, two_a_process, a_group_a_process, groups_across};

EngineOptions with(EngineOptions options, const Layout& layout) {
  options.expert_parallel = layout.ranks;
  options.data_parallel = layout.owners;
  options.moe_a2a_backend = layout.exchange;
  return options;
}
std::string name_of(const std::string& model, const Layout& layout) {
  return model + ", --nnodes " + std::to_string(layout.processes) + " --ep " + std::to_string(layout.ranks) +
         " --dp " + std::to_string(layout.owners) + " --moe-a2a-backend " + layout.exchange;
}

// Of a process; so each rank has one at least.
const EngineOptions few_threads{.threads = 2, .max_num_seqs = 6, .max_num_batched_tokens = 48};

Answers answers_in(const std::string& model, const EngineOptions& options, const Layout& layout) {
  const EngineOfProcesses engine(checkpoints / model, with(options, layout), layout.processes);
  if (engine.get() == nullptr) return {};
  submit_all(*engine.get());
  return run(*engine.get());
}

TEST(OwnerProcesses, GiveTheBitsOfOneRankForFamiliesWithKeysStatesAndLatents) {
  for (const std::string model : {"example", "qwen3_next_bf16", "deepseek_v3_fp8"}) {
    const Answers expected = answers_of(model, {.threads = 1});
    ASSERT_EQ(expected.size(), 6u);
    for (const Layout& layout : layouts)
      EXPECT_EQ(answers_in(model, few_threads, layout), expected) << name_of(model, layout);
  }
}

TEST(OwnerProcesses, GiveTheBitsOfOneRankInFourProcessesAndOfEightRanks) {
  const Answers expected = answers_of("example", {.threads = 1});
  for (const Layout& layout : {Layout{4, 4, 4, "normal"}, {4, 8, 2, "normal"}, {2, 8, 8, "low_latency"}})
    EXPECT_EQ(answers_in("example", few_threads, layout), expected) << name_of("example", layout);
}

TEST(OwnerProcesses, GiveTheBitsOfOneRankInEveryTypeBatchAndChunking) {
  for (const FloatType dtype : {FloatType::float32, FloatType::int8}) {
    const Answers expected = answers_of("example", {.threads = 1, .dtype = dtype});
    for (const auto& [rows, sequences] : {std::pair{5, 2}, {200, 7}}) {
      const EngineOptions options{
          .threads = 2, .max_num_seqs = sequences, .max_num_batched_tokens = rows, .dtype = dtype};
      for (const Layout& layout : {two_a_process, groups_across})
        EXPECT_EQ(answers_in("example", options, layout), expected)
            << name_of("example", layout) << ", " << rows << " rows, " << sequences << " sequences";
    }
  }
}

// Each owner's step is of prompts or of answers as the whole is, wherever it runs.
TEST(OwnerProcesses, RoundPromptsToFp8AsOneRankDoes) {
  EngineOptions options = few_threads;
  options.dtype = FloatType::fp8_e4m3;
  const Answers expected =
      answers_of("qwen3_moe_fp8", {.threads = 1, .max_num_seqs = 1, .dtype = FloatType::fp8_e4m3});
  for (const Layout& layout : {two_a_process, groups_across})
    EXPECT_EQ(answers_in("qwen3_moe_fp8", options, layout), expected) << name_of("qwen3_moe_fp8", layout);
}

TEST(OwnerProcesses, GiveTheBitsOfOneRankWhoeverMakesRoom) {
  for (const std::string model : {"example", "qwen3_next_bf16"}) {
    const Answers expected = answers_of(model, {.threads = 1});
    for (const Layout& layout : {alone_each, groups_across}) {
      const EngineOfProcesses engine(
          checkpoints / model, with({.threads = 2, .max_num_seqs = 6, .max_num_batched_tokens = 16}, layout),
          layout.processes, [](EngineChoices& choices) { choices.scheduler.preempt_every = 3; });
      ASSERT_NE(engine.get(), nullptr);
      submit_all(*engine.get());
      EXPECT_EQ(run(*engine.get()), expected) << name_of(model, layout);
      EXPECT_GT(engine.get()->totals().preemptions, 0u);
    }
  }
}

// Snapshots of states too.
TEST(OwnerProcesses, APrefixIsFoundByWhoHasIt) {
  const auto ask = [](Engine& engine, RequestId id) {
    const SamplingParams sampling{.max_tokens = 6, .temperature = 0, .logprobs = 2};
    const std::vector<TokenId> prompt(70, static_cast<TokenId>(20 + id % 4));
    EXPECT_TRUE(engine.submit(request(id, prompt, sampling)).ok());
    return run(engine)[id];
  };
  for (const std::string model : {"example", "qwen3_5_moe_fp8"}) {
    EngineOptions options{.threads = 1};
    const std::unique_ptr<Engine> alone = engine_of(model, options);
    if (alone->model().plan.model.linear_layers > 0) options.snapshot_interval = 64;
    for (const Layout& layout : {two_a_process, groups_across}) {
      const EngineOfProcesses engine(checkpoints / model, with(options, layout), layout.processes);
      ASSERT_NE(engine.get(), nullptr);
      for (RequestId id = 0; id < 8; ++id) {
        const Answer got = ask(*engine.get(), id);
        EXPECT_EQ(got, ask(*alone, id)) << name_of(model, layout);
        EXPECT_EQ(got.cached_tokens, id < 4 ? 0 : 64) << name_of(model, layout);
      }
    }
  }
}

TEST(OwnerProcesses, DraftsAreCheckedWhoeverHasTheSequence) {
  const std::unique_ptr<Engine> alone = engine_of("example", {.threads = 1});
  const std::vector<Request> requests = requests_of(alone->model().vocabulary);
  const auto expected = told_by(*alone, requests);
  for (const Layout& layout : {alone_each, groups_across}) {
    EngineOptions options = few_threads;
    options.speculative_algorithm = "ngram";
    const EngineOfProcesses engine(checkpoints / "example", with(options, layout), layout.processes);
    ASSERT_NE(engine.get(), nullptr);
    EXPECT_EQ(told_by(*engine.get(), requests), expected) << name_of("example", layout);
    EXPECT_GT(engine.get()->totals().accepted_drafts, 0u);
  }
}

// What `plan --matrix` says of this machine is so.
TEST(OwnerProcesses, EveryPairThatThePlanSaysRunsHereGivesTheBitsOfOneRank) {
  const std::string model = "example";
  const ModelTraits traits = traits_of(read_model_config(checkpoints / model).value(), model).value();
  const Answers expected = answers_of(model, {.threads = 1});
  EngineOptions base = with(few_threads, a_group_a_process);
  base.moe_a2a_backend = "auto";
  base.processes = a_group_a_process.processes;
  const Result<std::vector<JudgedPair>> judged = judge_pairs(base, probe_machine(), traits);
  ASSERT_TRUE(judged.ok()) << judged.status().message();
  int ran = 0;
  for (const JudgedPair& pair : *judged) {
    if (!pair.built || !pair.rules.empty()) continue;
    EngineOptions options = few_threads;
    options.moe_runner_backend = std::string(pair.path.kernel);
    Layout layout = a_group_a_process;
    layout.exchange = std::string(pair.path.exchange);
    EXPECT_EQ(answers_in(model, options, layout), expected)
        << name_of(model, layout) << ", " << pair.path.kernel;
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

}  // namespace
}  // namespace nibble
