// Models whose layers keep a state of a sequence: a slot is taken up by one request after the other, and bits
// depend on none of that.
#include <gtest/gtest.h>

#include "engine/choices.h"
#include "engine/engine_test_util.h"

namespace nibble {
namespace {

const std::filesystem::path hybrid =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/qwen3_5_moe_stacked";

// Lengths around the borders of a state's chunks, prompts and answers together, and some that cross them
// while they decode.
std::map<RequestId, Answer> answers_of(Engine& engine) {
  RequestId id = 0;
  for (const int length : {1, 62, 63, 64, 65, 127, 128, 150}) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((7 * i + length) % 400);
    EXPECT_TRUE(
        engine.submit(request(id++, prompt, {.max_tokens = 12, .temperature = 0, .logprobs = 2})).ok());
  }
  return run(engine);
}

std::unique_ptr<Engine> load_hybrid(EngineOptions options,
                                    const std::function<void(EngineChoices&)>& change = {}) {
  options.model = hybrid.string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

TEST(States, BitsDependOnNeitherCutsNorCompanyNorPreemption) {
  const auto expected =
      answers_of(*load_hybrid({.threads = 1, .max_num_seqs = 1, .max_num_batched_tokens = 1}));
  ASSERT_EQ(expected.size(), 8u);
  struct Way {
    int rows, sequences, preempt_every;
    bool plans_ahead;
  };
  for (const Way& way :
       {Way{512, 8, 0, false}, {63, 3, 0, true}, {65, 2, 2, false}, {100, 4, 3, true}, {7, 8, 5, false}}) {
    const auto engine =
        load_hybrid({.threads = 2, .max_num_seqs = way.sequences, .max_num_batched_tokens = way.rows},
                    [&](EngineChoices& choices) {
                      choices.scheduler.preempt_every = way.preempt_every;
                      choices.plan_ahead = way.plans_ahead;
                    });
    const auto got = answers_of(*engine);
    for (const auto& [id, answer] : expected)
      EXPECT_EQ(got.at(id), answer) << id << ", " << way.rows << " rows a step";
    EXPECT_EQ(engine->totals().preemptions > 0, way.preempt_every > 0);
  }
}

std::vector<TokenId> counted(int length, int salt = 0) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((7 * i + salt) % 400);
  return prompt;
}

// The beginning of one prompt and something else behind it.
std::vector<TokenId> parting_at(int position, int length) {
  std::vector<TokenId> prompt = counted(length);
  for (int i = position; i < length; ++i) prompt[static_cast<std::size_t>(i)] = (11 * i + 3) % 400;
  return prompt;
}

Answer answer_to(Engine& engine, const std::vector<TokenId>& prompt) {
  EXPECT_TRUE(engine.submit(request(1, prompt, {.max_tokens = 6, .temperature = 0, .logprobs = 2})).ok());
  return run(engine).at(1);
}

TEST(States, APrefixIsGoneOnFromTheDeepestSnapshotWithTheSameBits) {
  const auto cold = load_hybrid({.no_prefix_cache = true});
  EXPECT_EQ(cold->model().plan.state_snapshots, 0);
  // A snapshot at every border, as steps of any length pass it.
  for (const int rows : {512, 65, 64, 63, 1}) {
    const auto warm = load_hybrid({.max_num_batched_tokens = rows, .snapshot_interval = 64});
    (void)answer_to(*warm, counted(270));
    for (const int cut : {63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257}) {
      if (rows == 1 && cut > 129) continue;
      const std::vector<TokenId> prompt = parting_at(cut, 270);
      const Answer expected = answer_to(*cold, prompt), got = answer_to(*warm, prompt);
      EXPECT_EQ(got, expected) << "cut at " << cut << " in steps of " << rows;
      EXPECT_EQ(got.cached_tokens, cut / 64 * 64);
      const Answer again = answer_to(*warm, prompt);
      EXPECT_EQ(again, expected);
      EXPECT_EQ(again.cached_tokens, 256);
    }
    EXPECT_GT(warm->totals().snapshots_resumed, 0u);
  }
}

TEST(States, EndsOfPromptsAndBranchesAreKeptWithoutAnInterval) {
  const auto cold = load_hybrid({.no_prefix_cache = true});
  const auto warm = load_hybrid({});
  EXPECT_EQ(answer_to(*warm, counted(300)).cached_tokens, 0);
  EXPECT_EQ(answer_to(*warm, counted(300)).cached_tokens, 256)
      << "the last border before the answer's opening";
  // The first to leave it finds no state there and keeps one, for the second.
  for (const int found : {0, 128}) {
    const std::vector<TokenId> prompt = parting_at(150 + found / 64, 300);
    const Answer got = answer_to(*warm, prompt);
    EXPECT_EQ(got, answer_to(*cold, prompt));
    EXPECT_EQ(got.cached_tokens, found);
  }
}

TEST(States, RequestsThatComeTogetherComputeTheirCommonPromptOnce) {
  const auto ask = [&](Engine& engine) {
    for (RequestId id = 0; id < 4; ++id) {
      std::vector<TokenId> prompt = parting_at(200, 280);
      prompt[static_cast<std::size_t>(210 + id)] = 1;
      EXPECT_TRUE(
          engine.submit(request(id, prompt, {.max_tokens = 4, .temperature = 0, .logprobs = 2})).ok());
    }
    return run(engine);
  };
  const auto cold = load_hybrid({.no_prefix_cache = true});
  const auto warm = load_hybrid({});
  const auto expected = ask(*cold), got = ask(*warm);
  for (const auto& [id, answer] : expected) {
    EXPECT_EQ(got.at(id), answer) << id;
    EXPECT_EQ(got.at(id).cached_tokens, id == 0 ? 0 : 192) << id;
  }
}

TEST(States, BitsDependOnNeitherEvictionNorPreemptionOfWhatSnapshotsServe) {
  std::map<RequestId, Answer> expected;
  const auto cold = load_hybrid({.no_prefix_cache = true});
  const auto ask = [&](Engine& engine) {
    for (RequestId id = 0; id < 12; ++id) {
      const int cut = 40 + 23 * static_cast<int>(id);
      EXPECT_TRUE(engine
                      .submit(request(id, parting_at(cut, 100 + cut % 200),
                                      {.max_tokens = 30, .temperature = 0, .logprobs = 2}))
                      .ok());
    }
    return run(engine);
  };
  expected = ask(*cold);
  struct Way {
    int rows, snapshots, interval, kv_tokens, preempt_every;
    bool plans_ahead;
  };
  for (const Way& way : {Way{512, 1, 64, 0, 3, false},
                         {65, 3, 128, 600, 0, true},
                         {100, 2, 64, 480, 4, true},
                         {512, 100, 64, 640, 2, false}}) {
    const auto engine = load_hybrid({.max_num_batched_tokens = way.rows,
                                     .kv_cache_tokens = way.kv_tokens,
                                     .state_snapshots = way.snapshots,
                                     .snapshot_interval = way.interval},
                                    [&](EngineChoices& choices) {
                                      choices.scheduler.preempt_every = way.preempt_every;
                                      choices.plan_ahead = way.plans_ahead;
                                    });
    for (int turn = 0; turn < 2; ++turn) {
      const auto got = ask(*engine);
      for (const auto& [id, answer] : expected) EXPECT_EQ(got.at(id), answer) << id << ", turn " << turn;
    }
    EXPECT_GT(engine->totals().snapshots_resumed, 0u) << way.rows;
    EXPECT_EQ(engine->totals().snapshots_evicted > 0, way.snapshots < 100 || way.kv_tokens > 0);
    if (way.preempt_every > 0) {
      EXPECT_GT(engine->totals().preemptions, 0u);
    }
  }
}

TEST(States, APlanWithoutASnapshotIsRefusedBeforeMemoryIsTaken) {
  EngineOptions options{.model = hybrid.string()};
  options.given.state_snapshots = true;
  const Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().exit_code(), 2);
  EXPECT_EQ(
      engine.status().message(),
      "--state-snapshots 0: requests go on from this model's prefixes by snapshots of its states alone; "
      "give from 1 to what fits, or --no-prefix-cache");
}

}  // namespace
}  // namespace nibble
