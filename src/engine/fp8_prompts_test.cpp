// --dtype fp8: rows of prompts meet FP8 weights with FP8's precision, rows of answers with bfloat16's. What a
// row is follows from its position in its request alone, and so do its bits.
#include <gtest/gtest.h>

#include "engine/choices.h"
#include "engine/engine_test_util.h"

namespace nibble {
namespace {

using Change = std::function<void(EngineChoices&)>;
using Answers = std::map<RequestId, Answer>;

// Attention, with scales of tiles and of rows; latents; layers with a state.
class Fp8PromptsOf : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> load(EngineOptions options, const Change& change = {}) const {
    options.model = (example_folder.parent_path() / GetParam()).string();
    if (options.dtype == FloatType::automatic) options.dtype = FloatType::fp8_e4m3;
    Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  std::unique_ptr<Engine> load_alone(FloatType dtype = FloatType::fp8_e4m3) const {
    return load({.threads = 1, .max_num_seqs = 1, .dtype = dtype, .no_prefix_cache = true});
  }
};

std::vector<TokenId> counted(int length, int salt) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((7 * i + salt) % 400);
  return prompt;
}

// Prompts that begin alike and apart, some longer than a chunk of a state.
std::vector<Request> first_turns() {
  std::vector<Request> all;
  for (const int length : {1, 15, 16, 33, 64, 90, 130}) {
    for (const int salt : {0, length}) {
      SamplingParams sampling{.max_tokens = 40, .temperature = 0, .logprobs = 2};
      if (all.size() % 3 == 1) {
        sampling.temperature = 1.1f;
        sampling.seed = all.size();
      }
      sampling.prompt_logprobs = all.size() % 5 == 4;
      all.push_back(request(all.size(), counted(length, salt), sampling));
    }
  }
  return all;
}

// Each goes on behind what was asked and answered before.
std::vector<Request> second_turns(const std::vector<Request>& first, const Answers& answers) {
  std::vector<Request> all;
  for (const Request& asked : first) {
    Request next = asked;
    next.id += 100;
    const std::vector<TokenId>& answer = answers.at(asked.id).tokens;
    next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
    for (const TokenId token : {3, 1, 4, 1, 5}) next.prompt.push_back(token);
    next.sampling.max_tokens = 8;
    all.push_back(std::move(next));
  }
  return all;
}

Answers answers_of(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& each : requests) EXPECT_TRUE(engine.submit(each).ok());
  return run(engine);
}

void expect_equal(const Answers& got, const Answers& expected, const std::string& way) {
  ASSERT_EQ(got.size(), expected.size()) << way;
  for (const auto& [id, answer] : expected) EXPECT_EQ(got.at(id), answer) << id << ", " << way;
}

TEST_P(Fp8PromptsOf, BitsDependOnNeitherCutsNorCompanyNorPreemptionNorEarlierTurns) {
  const std::vector<Request> first = first_turns();
  const Answers expected = answers_of(*load_alone(), first);
  const std::vector<Request> second = second_turns(first, expected);
  const Answers expected_second = answers_of(*load_alone(), second);
  struct Way {
    int rows, sequences, preempt_every;
    bool plans_ahead, caches;
  };
  for (const Way& way : {Way{512, 16, 0, false, true},
                         {48, 5, 0, true, true},
                         {65, 3, 7, false, true},
                         {33, 8, 5, true, true},
                         {100, 16, 4, false, false},
                         {7, 4, 0, false, true}}) {
    const std::string name = std::to_string(way.rows) + " rows a step";
    const auto engine = load({.threads = 2,
                              .max_num_seqs = way.sequences,
                              .max_num_batched_tokens = way.rows,
                              .no_prefix_cache = !way.caches},
                             [&](EngineChoices& choices) {
                               choices.scheduler.preempt_every = way.preempt_every;
                               choices.plan_ahead = way.plans_ahead;
                             });
    expect_equal(answers_of(*engine, first), expected, name);
    expect_equal(answers_of(*engine, second), expected_second, name + ", the second turn");
    EXPECT_EQ(engine->totals().preemptions > 0, way.preempt_every > 0);
    EXPECT_EQ(engine->totals().prefix_hit_tokens > 0, way.caches) << name;
    EXPECT_EQ(engine->load_now().pages_used, 0);
  }
}

// Rows of answers have the arithmetic of bfloat16, and a prompt of one row whose inputs are few differs
// least; so the whole is looked at.
TEST_P(Fp8PromptsOf, RoundingShowsInPromptsAndNowhereElse) {
  std::vector<Request> requests = first_turns();
  for (Request& each : requests) each.sampling.prompt_logprobs = true;
  const Answers rounded = answers_of(*load_alone(), requests);
  const Answers plain = answers_of(*load_alone(FloatType::bfloat16), requests);
  int differing = 0;
  for (const Request& each : requests)
    differing += rounded.at(each.id).prompt_logprobs != plain.at(each.id).prompt_logprobs;
  EXPECT_GE(differing, static_cast<int>(requests.size()) - 2)
      << "a prompt of one token has no log-probability";
  // Where no step is one of prompts, nothing is rounded.
  const auto never = load({.threads = 1, .max_num_seqs = 1, .no_prefix_cache = true},
                          [](EngineChoices& choices) { choices.scheduler.prompts_apart = false; });
  expect_equal(answers_of(*never, requests), plain, "without steps of prompts");
}

TEST_P(Fp8PromptsOf, BitsDependOnNoKernelsByTheirNames) {
  const std::vector<Request> requests = first_turns();
  const Answers expected = answers_of(*load_alone(), requests);
  for (const DotKernels& each : dot_kernels()) {
    if (!each.supported()) continue;
    const std::string name = "cpu_" + std::string(each.name);
    const auto engine = load({.threads = 2, .max_num_batched_tokens = 48, .moe_runner_backend = name});
    expect_equal(answers_of(*engine, requests), expected, name);
  }
}

// Drafts are rows of answers. Beside states: state_drafts_test.cpp.
class DraftsBesideFp8PromptsOf : public Fp8PromptsOf {};

TEST_P(DraftsBesideFp8PromptsOf, LeaveTheBits) {
  std::vector<Request> requests = first_turns();
  for (Request& each : requests) each.sampling.max_tokens = 60;
  const Answers expected = answers_of(*load_alone(), requests);
  const auto engine = load({.threads = 2, .max_num_batched_tokens = 64, .speculative_algorithm = "ngram"});
  expect_equal(answers_of(*engine, requests), expected, "with drafts");
  EXPECT_GT(engine->totals().accepted_drafts, 0u);
}

std::string name_of(const testing::TestParamInfo<const char*>& model) { return model.param; }

INSTANTIATE_TEST_SUITE_P(Checkpoints, Fp8PromptsOf,
                         testing::Values("qwen3_moe_fp8", "qwen3_moe_fp8_row", "deepseek_v3_fp8",
                                         "qwen3_5_moe_fp8"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Checkpoints, DraftsBesideFp8PromptsOf,
                         testing::Values("qwen3_moe_fp8", "deepseek_v3_fp8"), name_of);

}  // namespace
}  // namespace nibble
