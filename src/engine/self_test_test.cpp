#include "engine/self_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "engine/engine_test_util.h"
#include "engine/engine_thread.h"

namespace nibble {
namespace {

Event token_event(TokenId token, float logprob, FinishReason finish = FinishReason::none) {
  return {.request = SelfTest::id, .token = token, .logprob = logprob, .finish = finish};
}

// A run that answers so.
Status run(SelfTest& test, float prompt, TokenId last, float logprob) {
  (void)test.begin();
  Event first = token_event(3, -1.5f);
  first.prompt_logprobs = {0, prompt};
  const Status begun = test.take(first);
  EXPECT_TRUE(begun.ok());
  return test.take(token_event(last, logprob, FinishReason::length));
}

TEST(SelfTest, EveryBitOfPromptAndAnswerCounts) {
  SelfTest test(100);
  EXPECT_TRUE(run(test, -2, 4, -0.25f).ok());
  EXPECT_TRUE(run(test, -2, 4, -0.25f).ok());
  EXPECT_EQ(test.runs(), 2u);
  EXPECT_FALSE(run(test, -2, 5, -0.25f).ok());
  EXPECT_FALSE(run(test, -2, 4, std::nextafter(-0.25f, 0.0f)).ok());
  EXPECT_FALSE(run(test, std::nextafter(-2.0f, 0.0f), 4, -0.25f).ok());
  EXPECT_EQ(test.runs(), 2u);
  EXPECT_TRUE(run(test, -2, 4, -0.25f).ok()) << "it is held to the first run, not to the last";
}

TEST(SelfTest, ARunThatIsEndedSaysWhy) {
  SelfTest test(100);
  (void)test.begin();
  Event end = token_event(-1, 0, FinishReason::error);
  end.error = "rank 1 does not come";
  const Status status = test.take(end);
  EXPECT_NE(status.message().find("rank 1 does not come"), std::string::npos) << status.message();
}

TEST(SelfTest, ItsPromptIsOfTheVocabularyAndShorterThanAPage) {
  for (const int vocabulary : {8, 290, 201'088}) {
    const Request request = SelfTest(vocabulary).begin();
    EXPECT_EQ(request.prompt.size(), static_cast<std::size_t>(SelfTest::prompt_tokens));
    for (const TokenId id : request.prompt) EXPECT_TRUE(id >= 0 && id < vocabulary) << id;
    EXPECT_LT(SelfTest::prompt_tokens + SelfTest::answer_tokens, 64);
  }
}

// The first answer of each run, and then another where it is told to.
class WanderingEngine final : public Engine {
 public:
  explicit WanderingEngine(int wanders_at_run) : wanders_at_run_(wanders_at_run) {
    info_.vocabulary = 100;
    info_.max_model_len = 64;
  }
  const ModelInfo& model() const override { return info_; }
  Status submit(Request request) override {
    EXPECT_EQ(request.id, SelfTest::id);
    left_ = request.sampling.max_tokens;
    ++runs_;
    return {};
  }
  void cancel(RequestId) override {}
  bool idle() const override { return left_ == 0; }
  EngineLoad load_now() const override { return {}; }
  void time_ops(TimeTable*) override {}
  Result<StepTimes> step(std::vector<Event>& events) override {
    const bool last = --left_ == 0;
    events.push_back(
        token_event(runs_ == wanders_at_run_ ? 2 : 1, -1, last ? FinishReason::length : FinishReason::none));
    return StepTimes{.prefill_tokens = 8};
  }

 private:
  ModelInfo info_;
  int wanders_at_run_, runs_ = 0, left_ = 0;
};

void wait_until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(holds());
}

TEST(SelfTest, AnEngineThatAnswersOtherwiseThanAtFirstFails) {
  EngineThread thread(
      std::make_unique<WanderingEngine>(3), 4, [](std::vector<DeliveredEvent>) { ADD_FAILURE(); },
      std::chrono::milliseconds(1));
  wait_until([&] { return thread.failed(); });
  EXPECT_NE(thread.failure().find("self-test"), std::string::npos) << thread.failure();
  EXPECT_EQ(thread.counts().self_tests, 2u);
  EXPECT_EQ(thread.submit({request(1, {1}, {})}).code(), StatusCode::internal);
}

TEST(SelfTest, NeitherCountsNorPagesTellOfIt) {
  EngineOptions options{.max_num_seqs = 2, .max_num_batched_tokens = 4};
  options.model = example_folder.string();
  EngineThread thread(
      Engine::load(options).value(), 4, [](std::vector<DeliveredEvent>) { ADD_FAILURE(); },
      std::chrono::milliseconds(5));
  wait_until([&] { return thread.counts().self_tests >= 3; });
  const EngineCounts counts = thread.counts();
  EXPECT_EQ(counts.steps, 0u);
  EXPECT_EQ(counts.prompt_tokens + counts.generated_tokens, 0u);
  EXPECT_EQ(counts.totals.prefix_query_tokens, 0u);
  EXPECT_EQ(counts.load.running + counts.load.queued + counts.load.pages_used + counts.load.pages_cached, 0);
  EXPECT_FALSE(thread.failed());
}

}  // namespace
}  // namespace nibble
