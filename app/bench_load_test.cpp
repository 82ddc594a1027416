#include "app/bench_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace nibble {
namespace {

TEST(Percentiles, AreNearestRanks) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Percentiles found = percentiles(samples);
  EXPECT_EQ(found.p50, 50);
  EXPECT_EQ(found.p90, 90);
  EXPECT_EQ(found.p99, 99);
  EXPECT_EQ(percentiles({7}).p99, 7);
  EXPECT_EQ(percentiles({}).p50, 0);
}

// An engine that needs one step for a prompt and one a token, all taking a given time.
class FakeEngine final : public Engine {
 public:
  const ModelInfo& model() const override { return info_; }
  Status submit(Request request) override {
    EXPECT_EQ(request.prompt.size(), 10u);
    running_[request.id] = {request.sampling.max_tokens, true};
    if (request.prediction != nullptr) predictions_.push_back(*request.prediction);
    most_ = std::max(most_, running_.size());
    return {};
  }
  void cancel(RequestId id) override { running_.erase(id); }
  void time_ops(TimeTable* table) override { table_ = table; }
  EngineLoad load_now() const override { return {}; }
  bool idle() const override { return running_.empty(); }
  Result<StepTimes> step(std::vector<Event>& events) override {
    StepTimes times{.seconds = 0.5};
    // Every third step somebody else has the CPU, and it takes longer.
    if (++steps_ % 3 == 0) times.seconds = 0.75;
    times.cpu_seconds = 0.5;
    if (table_ != nullptr) table_->add("op", 0.25);
    for (auto each = running_.begin(); each != running_.end();) {
      auto& [left, fresh] = each->second;
      (fresh ? times.prefill_tokens : times.decode_tokens) += fresh ? 10 : 1;
      fresh = false;
      events.push_back({.request = each->first,
                        .token = 1,
                        .finish = --left == 0 ? FinishReason::length : FinishReason::none});
      each = left == 0 ? running_.erase(each) : std::next(each);
    }
    return times;
  }
  std::size_t most_ = 0;
  std::vector<std::vector<TokenId>> predictions_;
  int steps_ = 0;
  TimeTable* table_ = nullptr;

 private:
  ModelInfo info_{.vocabulary = 50};
  std::map<RequestId, std::pair<int, bool>> running_;
};

TEST(RunBench, KeepsTheLoopFullAndCountsTokensOfEachKindOfStep) {
  FakeEngine engine;
  std::int64_t last_done = 0, all = 0;
  const Result<BenchResult> result = run_bench(
      engine, {.input_len = 10, .output_len = 5, .concurrency = 4, .requests = 8, .step_tokens = 64},
      [&](std::int64_t done, std::int64_t total) {
        last_done = done;
        all = total;
      },
      [] { return false; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(engine.most_, 4u);
  EXPECT_EQ(all, 8 * 15);
  EXPECT_GE(last_done, 8 * 14) << "a prompt's last step gives the first token";
  EXPECT_DOUBLE_EQ(result->prefill.tokens_per_s, 80);
  EXPECT_DOUBLE_EQ(result->decode.tokens_per_s, 8);
  EXPECT_DOUBLE_EQ(result->decode.step_tokens, 4);
  EXPECT_TRUE(result->decode.times.rows().empty()) << "nobody asked";
}

TEST(RunBench, PredictsAnswersAsWellAsItIsTold) {
  for (const int percent : {100, 40}) {
    FakeEngine engine;
    ASSERT_TRUE(run_bench(
                    engine,
                    {.input_len = 10,
                     .output_len = 100,
                     .concurrency = 2,
                     .requests = 4,
                     .step_tokens = 64,
                     .predicted = percent},
                    [](std::int64_t, std::int64_t) {}, [] { return false; })
                    .ok());
    ASSERT_EQ(engine.predictions_.size(), 4u) << "of the second time alone";
    std::ptrdiff_t right = 0;
    for (const std::vector<TokenId>& each : engine.predictions_) {
      EXPECT_EQ(each.size(), 100u);
      right += std::count(each.begin(), each.end(), 1);
    }
    EXPECT_NEAR(static_cast<double>(right) / 4, percent, percent == 100 ? 0 : 10);
  }
}

TEST(RunBench, CountsTheStepsThatHadTheirCpus) {
  FakeEngine engine;
  const Result<BenchResult> result = run_bench(
      engine,
      {.input_len = 10,
       .output_len = 31,
       .concurrency = 2,
       .requests = 2,
       .step_tokens = 64,
       .profile = true},
      [](std::int64_t, std::int64_t) {}, [] { return false; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->decode.steps, 30);
  EXPECT_EQ(result->decode.clean_steps, 20);
  EXPECT_DOUBLE_EQ(result->decode.step_s, 0.5);
  EXPECT_DOUBLE_EQ(result->decode.tokens_per_s, 4);
  ASSERT_EQ(result->decode.times.rows().size(), 1u);
  EXPECT_DOUBLE_EQ(result->decode.times.rows()[0].seconds, 30 * 0.25);
  EXPECT_TRUE(engine.idle());
}

TEST(RunBench, CountsAllStepsWhereNoneHadItsCpus) {
  FakeEngine engine;
  const Result<BenchResult> result = run_bench(
      engine,
      {.input_len = 10, .output_len = 9, .concurrency = 1, .requests = 1, .step_tokens = 64, .cpus = 4},
      [](std::int64_t, std::int64_t) {}, [] { return false; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->decode.clean_steps, 0);
  EXPECT_EQ(result->decode.steps, 8);
  EXPECT_DOUBLE_EQ(result->decode.tokens_per_s, 2);
}

TEST(RunBench, StopsWhenAsked) {
  FakeEngine engine;
  const Result<BenchResult> result = run_bench(
      engine, {.input_len = 10, .output_len = 5, .concurrency = 1, .requests = 1, .step_tokens = 64},
      [](std::int64_t, std::int64_t) {}, [] { return true; });
  EXPECT_EQ(result.status().exit_code(), 130);
}

}  // namespace
}  // namespace nibble
