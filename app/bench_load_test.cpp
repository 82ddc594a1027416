#include "app/bench_load.h"

#include <gtest/gtest.h>

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
    most_ = std::max(most_, running_.size());
    return {};
  }
  void cancel(RequestId) override {}
  bool idle() const override { return running_.empty(); }
  Result<StepTimes> step(std::vector<Event>& events) override {
    StepTimes times{.seconds = 0.5};
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

 private:
  ModelInfo info_{.vocabulary = 50};
  std::map<RequestId, std::pair<int, bool>> running_;
};

TEST(RunBench, KeepsTheLoopFullAndCountsTokensOfEachKindOfStep) {
  FakeEngine engine;
  int last_done = 0;
  const Result<BenchResult> result = run_bench(
      engine, {.input_len = 10, .output_len = 5, .concurrency = 4, .requests = 8},
      [&](int done, int) { last_done = done; }, [] { return false; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(engine.most_, 4u);
  EXPECT_EQ(last_done, 8);
  EXPECT_DOUBLE_EQ(result->prefill_tokens_per_s, 80);
  EXPECT_DOUBLE_EQ(result->decode_tokens_per_s, 8);
  EXPECT_DOUBLE_EQ(result->tokens_a_decode_step, 4);
}

TEST(RunBench, StopsWhenAsked) {
  FakeEngine engine;
  const Result<BenchResult> result = run_bench(
      engine, {.input_len = 10, .output_len = 5, .concurrency = 1, .requests = 1}, [](int, int) {},
      [] { return true; });
  EXPECT_EQ(result.status().exit_code(), 130);
}

}  // namespace
}  // namespace nibble
