// Drafts of models whose layers keep a state: those that fail leave no trace in it, for each lies within the
// open chunk of 64 positions. So what comes of a request has the bits that it has without drafts.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/choices.h"
#include "engine/drafts_test_util.h"

namespace nibble {
namespace {

constexpr int answer_length = 34;

std::unique_ptr<Engine> load_engine_of(const std::string& model, EngineOptions options,
                                       const std::function<void(EngineChoices&)>& change = {}) {
  options.model = (example_folder.parent_path() / model).string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// Each answer passes a border, those behind prompts of 64 tokens and more the second one at the latest.
std::vector<Request> requests_across_borders() {
  std::vector<Request> all;
  for (const int length : {40, 57, 58, 60, 61, 62, 63, 64, 65, 100, 127}) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((7 * i + (i < 32 ? 0 : length)) % 400);
    SamplingParams sampling{.max_tokens = answer_length, .temperature = 0, .logprobs = 2};
    if (length % 2 == 1) {
      sampling.temperature = 0.9f;
      sampling.seed = static_cast<std::uint64_t>(length);
    }
    all.push_back(request(static_cast<RequestId>(length), prompt, sampling));
  }
  return all;
}

using AllTold = std::map<RequestId, Told>;

// With drafts of the answers that are to come, of which each `wrong_every`-th token is another; 0: none is.
std::vector<Request> foreseen(std::vector<Request> requests, const AllTold& answers,
                              std::size_t wrong_every) {
  constexpr TokenId end = 5;
  for (Request& each : requests) {
    std::vector<TokenId> drafts = answers.at(each.id).tokens;
    for (std::size_t i = 0; wrong_every > 0 && i < drafts.size(); ++i) {
      if ((i + each.id) % wrong_every == 0) drafts[i] ^= 1;
    }
    each.constraint = std::make_shared<Foreseeing>(drafts, answer_length, end, answer_length);
  }
  return requests;
}

AllTold told_without_drafts(const std::string& model, EngineOptions options,
                            const std::vector<Request>& requests) {
  options.threads = 1;
  options.max_num_seqs = 1;
  options.no_prefix_cache = true;
  options.speculative_algorithm = "none";
  return told_by(*load_engine_of(model, options), requests);
}

void expect_equal(const AllTold& got, const AllTold& expected, const std::string& way) {
  ASSERT_EQ(got.size(), expected.size()) << way;
  for (const auto& [id, told] : expected) EXPECT_TRUE(got.at(id) == told) << id << ", " << way;
}

class DraftsBesideStatesOf : public testing::TestWithParam<const char*> {};

TEST_P(DraftsBesideStatesOf, TrueAndFalseOnesLeaveTheBitsAcrossBorders) {
  const std::vector<Request> requests = requests_across_borders();
  const AllTold expected = told_without_drafts(GetParam(), {}, requests);
  for (const int drafts : {1, 8, 24}) {
    const auto engine = load_engine_of(GetParam(), {.threads = 2, .max_num_seqs = 1, .draft_tokens = drafts});
    EXPECT_EQ(engine->model().plan.choice("speculation").value, "forced");
    std::uint64_t drafted = 0, accepted = 0;
    for (const std::size_t wrong_every : {0, 1, 2, 5}) {
      const AllTold got = told_by(*engine, foreseen(requests, expected, wrong_every));
      expect_equal(got, expected,
                   std::to_string(drafts) + " drafts, each " + std::to_string(wrong_every) + "th wrong");
      const std::uint64_t newly_drafted = engine->totals().drafted_tokens - drafted,
                          newly_accepted = engine->totals().accepted_drafts - accepted;
      if (wrong_every == 0) {
        EXPECT_EQ(newly_accepted, newly_drafted);
      } else if (wrong_every == 1) {
        EXPECT_EQ(newly_accepted, 0u);
      }
      EXPECT_GT(newly_drafted, requests.size());
      drafted += newly_drafted;
      accepted += newly_accepted;
    }
  }
}

TEST_P(DraftsBesideStatesOf, LeaveTheBitsBesideSnapshotsPrefixesAndPreemption) {
  const std::vector<Request> requests = requests_across_borders();
  const AllTold expected = told_without_drafts(GetParam(), {}, requests);
  struct Way {
    int rows, sequences, kv_tokens, preempt_every;
  };
  for (const Way& way : {Way{512, 2, 0, 0}, {65, 3, 0, 3}, {64, 4, 400, 0}, {20, 2, 300, 5}}) {
    const auto engine =
        load_engine_of(GetParam(),
                       {.threads = 2,
                        .max_num_seqs = way.sequences,
                        .max_num_batched_tokens = way.rows,
                        .kv_cache_tokens = way.kv_tokens,
                        .snapshot_interval = 64,
                        .speculative_algorithm = "ngram"},
                       [&](EngineChoices& choices) { choices.scheduler.preempt_every = way.preempt_every; });
    for (const std::size_t wrong_every : {4, 0, 7}) {
      expect_equal(told_by(*engine, foreseen(requests, expected, wrong_every)), expected,
                   std::to_string(way.rows) + " rows, each " + std::to_string(wrong_every) + "th wrong");
    }
    if (way.kv_tokens == 0) {
      EXPECT_GT(engine->totals().snapshots_resumed, 0u);
    }
    EXPECT_GT(engine->totals().accepted_drafts, 100u);
    EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
    if (way.preempt_every > 0) {
      EXPECT_GT(engine->totals().preemptions, 0u);
    }
  }
}

// The next turn goes on from snapshots that steps with drafts took.
TEST_P(DraftsBesideStatesOf, SnapshotsOfTheirStepsServeTheNextTurn) {
  const std::vector<Request> requests = requests_across_borders();
  const AllTold first = told_without_drafts(GetParam(), {}, requests);
  std::vector<Request> next = requests;
  for (Request& each : next) {
    const std::vector<TokenId>& answer = first.at(each.id).tokens;
    each.prompt.insert(each.prompt.end(), answer.begin(), answer.end());
  }
  const AllTold second = told_without_drafts(GetParam(), {}, next);
  const auto engine = load_engine_of(GetParam(), {.threads = 2, .max_num_seqs = 1, .snapshot_interval = 64});
  for (const std::size_t wrong_every : {5, 0}) {
    expect_equal(told_by(*engine, foreseen(requests, first, wrong_every)), first, "first");
    expect_equal(told_by(*engine, foreseen(next, second, wrong_every)), second, "second");
  }
  EXPECT_GT(engine->totals().snapshots_resumed, next.size());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DraftsBesideStatesOf,
                         testing::Values("qwen3_next_bf16", "qwen3_5_moe_stacked", "qwen3_5_moe_fp8",
                                         "qwen3_5_dense"));

TEST(DraftsBesideStates, LeaveTheBitsInEveryTypeOverRanksAndOwners) {
  const std::vector<Request> requests = requests_across_borders();
  for (const auto& [model, dtype] : {std::pair{"qwen3_next_bf16", FloatType::float32},
                                     {"qwen3_5_moe_stacked", FloatType::bfloat16},
                                     {"qwen3_5_moe_stacked", FloatType::int8},
                                     {"qwen3_5_moe_fp8", FloatType::fp8_e4m3}}) {
    const AllTold expected = told_without_drafts(model, {.dtype = dtype}, requests);
    const EngineOptions one{.threads = 2, .max_num_seqs = 3, .dtype = dtype};
    EngineOptions ranks = one, owners = one;
    ranks.tensor_parallel = 2;
    owners.expert_parallel = 2;
    owners.dp_attention = true;
    for (const EngineOptions& options : {one, ranks, owners}) {
      const auto engine = load_engine_of(model, options);
      for (const std::size_t wrong_every : {0, 3}) {
        expect_equal(told_by(*engine, foreseen(requests, expected, wrong_every)), expected,
                     std::string(model) + ", --tp " + std::to_string(options.tensor_parallel) + " --ep " +
                         std::to_string(options.expert_parallel));
      }
      EXPECT_GT(engine->totals().accepted_drafts, 50u);
      EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
    }
  }
}

// Of the same text, whichever way it is guessed.
TEST(DraftsBesideStates, OfAPredictionLeaveTheBits) {
  std::vector<Request> requests = requests_across_borders();
  const AllTold expected = told_without_drafts("qwen3_5_moe_stacked", {}, requests);
  for (Request& each : requests) {
    std::vector<TokenId> prediction = expected.at(each.id).tokens;
    prediction[each.id % 20 + 5] ^= 1;
    each.prediction = std::make_shared<const std::vector<TokenId>>(std::move(prediction));
  }
  const auto engine = load_engine_of("qwen3_5_moe_stacked", {.threads = 1, .max_num_seqs = 1});
  expect_equal(told_by(*engine, requests), expected, "predicted");
  EXPECT_GT(engine->totals().accepted_drafts, 5 * requests.size());
  EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
}

TEST(DraftsBesideStates, ThatAreLookedUpLeaveTheBits) {
  std::vector<Request> requests = requests_across_borders();
  // Among few tokens some come twice.
  for (Request& each : requests) {
    for (TokenId token = 20; token < 25; ++token) each.sampling.logit_bias.push_back({token, 50});
  }
  const AllTold expected = told_without_drafts("qwen3_5_dense", {}, requests);
  const auto engine =
      load_engine_of("qwen3_5_dense", {.threads = 2, .max_num_seqs = 2, .speculative_algorithm = "ngram"});
  expect_equal(told_by(*engine, requests), expected, "looked up");
  EXPECT_GT(engine->totals().accepted_drafts, 20u);
  EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
}

}  // namespace
}  // namespace nibble
