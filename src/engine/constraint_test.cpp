// Constrained answers beside free ones: what may come comes, neighbours keep their bits, and numbers that are
// told are the model's own.
#include <memory>

#include "engine/choices.h"
#include "engine/constraint_test_util.h"
#include "engine/engine_test_util.h"

namespace nibble {
namespace {

enum class Loop { plain, ahead, preempting };

std::unique_ptr<Engine> load(Loop loop, int threads = 1) {
  EngineOptions options{.threads = threads, .max_num_seqs = 8, .max_num_batched_tokens = 32};
  options.model = example_folder.string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options,
                                                       [&](EngineChoices& choices) {
                                                         choices.plan_ahead = loop != Loop::plain;
                                                         if (loop == Loop::preempting)
                                                           choices.scheduler.preempt_every = 5;
                                                       },
                                                       {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

constexpr TokenId end_token = 5;

SamplingParams sampled(std::uint64_t seed) {
  return {.max_tokens = 30, .temperature = 1.0f, .seed = seed, .stop_ids = {end_token}};
}

Request constrained(RequestId id, const std::vector<TokenId>& prompt, SamplingParams sampling, int length,
                    int free = 0) {
  Request asked = request(id, prompt, std::move(sampling));
  asked.constraint = std::make_shared<Remainders>(length, end_token, free);
  return asked;
}

std::vector<SamplingParams> ways() {
  std::vector<SamplingParams> all(7, sampled(3));
  all[0].temperature = 0;
  all[2].top_k = 2;
  all[3].top_p = 0.3f;
  all[4].min_p = 0.5f;
  all[5].repetition_penalty = 1.5f;
  all[5].presence_penalty = 2;
  all[6].temperature = 2;
  all[6].logit_bias = {{3, 100.0f}, {10, -100.0f}};
  return all;
}

TEST(Constraint, OnlyWhatItAllowsComesHoweverTokensAreChosen) {
  const std::vector<Expected> prompts = expected_prompts();
  for (const Loop loop : {Loop::plain, Loop::ahead, Loop::preempting}) {
    const std::unique_ptr<Engine> engine = load(loop);
    const std::vector<SamplingParams> all = ways();
    for (RequestId id = 0; id < all.size(); ++id)
      ASSERT_TRUE(engine->submit(constrained(id, prompts[0].prompt, all[id], 12)).ok());
    for (const auto& [id, answer] : run(*engine)) {
      ASSERT_EQ(answer.tokens.size(), 13u) << id;
      for (int i = 0; i < 12; ++i)
        EXPECT_TRUE(Remainders::allows(i, answer.tokens[static_cast<std::size_t>(i)], end_token)) << id;
      EXPECT_EQ(answer.tokens.back(), end_token);
      EXPECT_EQ(answer.finish, FinishReason::stop);
    }
  }
}

TEST(Constraint, GivesTheSameBitsInEveryLoopAndLeavesItsNeighboursTheirs) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> alone = load(Loop::plain);
  ASSERT_TRUE(alone->submit(request(1, prompts[0].prompt, sampled(9))).ok());
  const Answer free = run(*alone)[1];
  ASSERT_TRUE(alone->submit(constrained(2, prompts[1].prompt, sampled(4), 15, 3)).ok());
  const Answer bound = run(*alone)[2];
  for (const Loop loop : {Loop::plain, Loop::ahead, Loop::preempting}) {
    const std::unique_ptr<Engine> engine = load(loop, 2);
    ASSERT_TRUE(engine->submit(constrained(3, prompts[0].prompt, sampled(9), 8)).ok());
    ASSERT_TRUE(engine->submit(request(1, prompts[0].prompt, sampled(9))).ok());
    ASSERT_TRUE(engine->submit(constrained(2, prompts[1].prompt, sampled(4), 15, 3)).ok());
    std::map<RequestId, Answer> answers = run(*engine);
    EXPECT_TRUE(answers[1] == free);
    EXPECT_TRUE(answers[2] == bound);
  }
}

// While nothing is forbidden a constrained answer is the free one.
TEST(Constraint, ThatNeverBindsChangesNothing) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> engine = load(Loop::ahead);
  ASSERT_TRUE(engine->submit(request(1, prompts[0].prompt, sampled(7))).ok());
  ASSERT_TRUE(engine->submit(constrained(2, prompts[0].prompt, sampled(7), 100, 100)).ok());
  std::map<RequestId, Answer> answers = run(*engine);
  EXPECT_TRUE(answers[1] == answers[2]);
}

TEST(Constraint, LogProbabilitiesAreThoseOfTheRawDistribution) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> engine = load(Loop::ahead);
  SamplingParams all = sampled(7);
  all.max_tokens = 1;
  all.logprobs = engine->model().vocabulary;
  ASSERT_TRUE(engine->submit(request(1, prompts[0].prompt, all)).ok());
  ASSERT_TRUE(engine->submit(constrained(2, prompts[0].prompt, all, 100)).ok());
  std::map<RequestId, Answer> answers = run(*engine);
  const Answer &free = answers[1], &bound = answers[2];
  ASSERT_EQ(free.last_top.size(), bound.last_top.size());
  for (std::size_t i = 0; i < free.last_top.size(); ++i) {
    EXPECT_EQ(free.last_top[i].id, bound.last_top[i].id);
    EXPECT_EQ(free.last_top[i].logprob, bound.last_top[i].logprob);
    if (free.last_top[i].id == bound.tokens[0]) {
      EXPECT_EQ(free.last_top[i].logprob, bound.logprobs[0]);
    }
  }
}

TEST(Constraint, WhereOnlyTheEndMayComeItComesWhateverForbidsIt) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> engine = load(Loop::ahead);
  SamplingParams longer = sampled(1);
  longer.min_tokens = 20;
  longer.logit_bias = {{end_token, -100.0f}};
  ASSERT_TRUE(engine->submit(constrained(1, prompts[0].prompt, longer, 4)).ok());
  const Answer answer = run(*engine)[1];
  ASSERT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(answer.tokens.back(), end_token);
  EXPECT_EQ(answer.finish, FinishReason::stop);
}

TEST(Constraint, CutByMaxTokensOrCancelledItLeavesTheOthersAlone) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> engine = load(Loop::ahead);
  SamplingParams cut = sampled(1);
  cut.max_tokens = 3;
  ASSERT_TRUE(engine->submit(constrained(1, prompts[0].prompt, cut, 20)).ok());
  ASSERT_TRUE(engine->submit(constrained(2, prompts[0].prompt, sampled(2), 20)).ok());
  ASSERT_TRUE(engine->submit(constrained(3, prompts[0].prompt, sampled(3), 20)).ok());
  engine->cancel(2);
  std::map<RequestId, Answer> answers = run(*engine);
  EXPECT_EQ(answers[1].finish, FinishReason::length);
  EXPECT_EQ(answers[1].tokens.size(), 3u);
  EXPECT_EQ(answers[2].finish, FinishReason::cancelled);
  EXPECT_EQ(answers[3].tokens.size(), 21u);
}

// No token leads on from its last place.
class CutShort final : public Remainders {
 public:
  using Remainders::Remainders;
  bool cut() const override { return true; }
};

TEST(Constraint, AnAnswerThatItCutDoesNotEndAsAWholeOne) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::unique_ptr<Engine> engine = load(Loop::ahead);
  ASSERT_TRUE(engine->submit(constrained(1, prompts[0].prompt, sampled(2), 4)).ok());
  Request cut = request(2, prompts[0].prompt, sampled(2));
  cut.constraint = std::make_shared<CutShort>(4, end_token);
  ASSERT_TRUE(engine->submit(std::move(cut)).ok());
  std::map<RequestId, Answer> answers = run(*engine);
  EXPECT_EQ(answers[1].tokens, answers[2].tokens);
  EXPECT_EQ(answers[1].finish, FinishReason::stop);
  EXPECT_EQ(answers[2].finish, FinishReason::cut);
}

}  // namespace
}  // namespace nibble
