// The engine with a GPU's worker, on a GPU or on its emulation.
#include <gtest/gtest.h>

#include <cmath>

#include "base/clock.h"
#include "engine/constraint_test_util.h"
#include "engine/gpu_engine_test_util.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

using GpuEngine = OnAGpuEngine;

TEST_F(GpuEngine, ANotANumberEndsTheRequestThatMetItAndLeavesItsMatesBitsAlone) {
  spoil_embedding(300);
  std::unique_ptr<Engine> engine = gpu_engine(copy_, {.max_num_seqs = 4, .no_prefix_cache = true});
  const auto ask = [&](RequestId id, std::vector<TokenId> prompt) {
    ASSERT_TRUE(engine->submit(request(id, prompt, {.max_tokens = 4, .temperature = 0, .logprobs = 2})).ok());
  };
  ask(1, {1, 2, 3});
  ask(2, {7, 8});
  const auto expected = run(*engine);
  ASSERT_EQ(expected.at(1).tokens.size(), 4u);
  ask(3, {5, 300});
  ask(1, {1, 2, 3});
  ask(4, {300});
  ask(2, {7, 8});
  const auto answers = run(*engine);
  for (const RequestId id : {3, 4}) {
    EXPECT_EQ(answers.at(id).finish, FinishReason::error);
    EXPECT_TRUE(answers.at(id).tokens.empty());
  }
  for (const RequestId id : {1, 2}) EXPECT_TRUE(answers.at(id) == expected.at(id)) << id;
}

// Every way in which a step depends on the one before it, and ends that nobody can know ahead.
std::vector<Request> entangled_requests() {
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 70; ++i) text.push_back(static_cast<TokenId>(i * 89 % 290));
  std::vector<Request> requests;
  const auto add = [&](std::size_t prompt, SamplingParams sampling) {
    const std::vector<TokenId> beginning(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt));
    requests.push_back(request(requests.size(), beginning, std::move(sampling)));
  };
  add(5, {.max_tokens = 9, .temperature = 0, .logprobs = 3});
  // It ends as known, so that a step without changes begins behind its last.
  add(7, {.max_tokens = 3, .temperature = 0.9f, .presence_penalty = 1, .logit_bias = {{5, 90}}, .seed = 1});
  add(66, {.max_tokens = 6, .temperature = 1.1f, .top_p = 0.9f, .seed = 2});
  add(70, {.max_tokens = 5, .temperature = 1.1f, .seed = 3});  // a page of it is the last one's
  add(11, {.max_tokens = 7, .temperature = 0, .prompt_logprobs = true});
  add(9, {.max_tokens = 3, .temperature = 0, .logprobs = 40});  // the host's to sample
  return requests;
}

TEST_F(GpuEngine, AStepBegunBehindAnotherChangesNoBit) {
  std::vector<Request> requests = entangled_requests();
  const auto answers_of = [&](bool plans_ahead, bool graphs) {
    std::unique_ptr<Engine> engine =
        gpu_engine(example_folder, {.max_num_seqs = 4}, [&](EngineChoices& choices) {
          choices.plan_ahead = plans_ahead;
          choices.worker.graphs = graphs;
        });
    for (const Request& asked : requests) EXPECT_TRUE(engine->submit(asked).ok());
    const auto answers = run(*engine);
    EXPECT_EQ(engine->load_now().pages_used, 0);
    return answers;
  };
  const auto whole = answers_of(false, false);
  // Two of them end at a token that comes in the middle.
  for (const RequestId id : {0, 2}) requests[id].sampling.stop_ids = {whole.at(id).tokens[4]};
  const auto expected = answers_of(false, false), got = answers_of(true, true);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(expected.at(0).finish, FinishReason::stop);
  for (const auto& [id, answer] : got) EXPECT_EQ(answer.finish, expected.at(id).finish) << id;
}

TEST_F(GpuEngine, AConstrainedAnswerIsTheSameInEveryLoopAndItsMatesKeepTheirBits) {
  const TokenId end = 290;
  const auto answers_of = [&](bool plans_ahead, bool alone) {
    std::unique_ptr<Engine> engine =
        gpu_engine(example_folder, {.max_num_seqs = 4},
                   [&](EngineChoices& choices) { choices.plan_ahead = choices.worker.graphs = plans_ahead; });
    const auto ask = [&](RequestId id, SamplingParams sampling, int length, int free) {
      Request asked = request(id, {7, 8, static_cast<TokenId>(id)}, std::move(sampling));
      if (length > 0) asked.constraint = std::make_shared<Remainders>(length, end, free);
      EXPECT_TRUE(engine->submit(std::move(asked)).ok());
    };
    ask(1, {.max_tokens = 9, .temperature = 1, .seed = 4, .logprobs = 3}, 0, 0);
    if (alone) return run(*engine);
    ask(2, {.max_tokens = 9, .temperature = 1, .top_k = 3, .seed = 5, .stop_ids = {end}}, 6, 0);
    ask(3, {.max_tokens = 9, .temperature = 1, .top_p = 0.4f, .presence_penalty = 1, .stop_ids = {end}}, 6,
        2);
    ask(4, {.max_tokens = 9, .temperature = 0, .stop_ids = {end}, .logprobs = 40}, 6, 1);  // the host's
    return run(*engine);
  };
  const auto plain = answers_of(false, false), ahead = answers_of(true, false);
  EXPECT_EQ(ahead, plain);
  EXPECT_TRUE(answers_of(true, true).at(1) == ahead.at(1));
  for (const RequestId id : {2, 3, 4}) {
    const std::vector<TokenId>& tokens = ahead.at(id).tokens;
    ASSERT_EQ(tokens.size(), 7u) << id;
    for (int i = id == 2 ? 0 : static_cast<int>(5 - id); i < 6; ++i)
      EXPECT_TRUE(Remainders::allows(i, tokens[static_cast<std::size_t>(i)], end)) << id;
    EXPECT_EQ(tokens.back(), end);
  }
}

TEST_F(GpuEngine, LogProbabilitiesOfAllowedTokensAloneMayBeAskedFor) {
  const TokenId end = 290;
  std::unique_ptr<Engine> engine = gpu_engine(example_folder, {.max_num_seqs = 4});
  SamplingParams all{.max_tokens = 1, .temperature = 1, .seed = 5, .stop_ids = {end}};
  all.logprobs = engine->model().vocabulary;
  all.constrained_logprobs = true;
  Request asked = request(1, {7, 8, 9}, std::move(all));
  asked.constraint = std::make_shared<Remainders>(6, end, 0);
  ASSERT_TRUE(engine->submit(std::move(asked)).ok());
  const Answer answer = run(*engine).at(1);
  double sum = 0;
  for (const TokenLogprob& entry : answer.last_top) {
    if (entry.id < 0) continue;
    EXPECT_TRUE(Remainders::allows(0, entry.id, end)) << entry.id;
    sum += std::exp(double{entry.logprob});
    if (entry.id == answer.tokens[0]) {
      EXPECT_EQ(entry.logprob, answer.logprobs[0]);
    }
  }
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST_F(GpuEngine, WhatIsCancelledWhileTwoStepsHaveBegunEndsAndLeavesItsMatesBitsAlone) {
  std::unique_ptr<Engine> engine = gpu_engine(example_folder, {.max_num_seqs = 4});
  const auto ask = [&](RequestId id) {
    ASSERT_TRUE(
        engine->submit(request(id, {7, 8, static_cast<TokenId>(id)}, {.max_tokens = 6, .temperature = 0}))
            .ok());
  };
  ask(1);
  const auto expected = run(*engine);
  ask(2);
  ask(1);
  std::vector<Event> events;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step(events).ok());
  engine->cancel(2);
  std::map<RequestId, Answer> answers = run(*engine);
  EXPECT_EQ(answers.at(2).finish, FinishReason::cancelled);
  std::vector<TokenId> tokens;
  for (const Event& event : events) {
    if (event.request == 1) tokens.push_back(event.token);
  }
  const std::vector<TokenId>& rest = answers.at(1).tokens;
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokens, expected.at(1).tokens);
  // All that is left is cancelled: the step that has begun for it delays nobody's end.
  ask(3);
  ask(4);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine->step(events).ok());
  engine->cancel(3);
  engine->cancel(4);
  answers = run(*engine);
  EXPECT_EQ(answers.at(3).finish, FinishReason::cancelled);
  ask(1);
  EXPECT_EQ(run(*engine), expected);
}

}  // namespace
}  // namespace nibble
