#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include <map>

namespace nibble {
namespace {

// One token a step for each request until its max_tokens; no model behind it.
class FakeEngine final : public Engine {
 public:
  static constexpr RequestId first_refused = 1000;  // by submit()

  explicit FakeEngine(int fail_at_step = -1) : fail_at_step_(fail_at_step) {
    info_.vocabulary = 100;
    info_.max_model_len = 64;
  }
  const ModelInfo& model() const override { return info_; }
  Status submit(Request request) override {
    if (request.id >= first_refused) return invalid_argument("the engine takes no such request");
    live_[request.id] = request.sampling.max_tokens;
    return {};
  }
  void cancel(RequestId id) override { cancelled_.push_back(id); }
  bool idle() const override { return live_.empty(); }
  EngineLoad load_now() const override {
    return {.queued = 0, .running = static_cast<int>(live_.size()), .pages_used = 0, .pages = 1};
  }
  void time_ops(TimeTable*) override {}
  Result<StepTimes> step(std::vector<Event>& events) override {
    if (++steps_ == fail_at_step_) return internal_error("the file shrank");
    for (const RequestId id : cancelled_) {
      if (live_.erase(id) > 0) events.push_back({.request = id, .finish = FinishReason::cancelled});
    }
    cancelled_.clear();
    StepTimes times{.decode_tokens = static_cast<int>(live_.size())};
    for (auto request = live_.begin(); request != live_.end();) {
      const bool last = --request->second <= 0;
      events.push_back({.request = request->first,
                        .token = 1,
                        .finish = last ? FinishReason::length : FinishReason::none,
                        .cached_tokens = 16});
      request = last ? live_.erase(request) : std::next(request);
    }
    return times;
  }
  EngineTotals totals() const override { return {.preemptions = static_cast<std::uint64_t>(steps_)}; }

 private:
  ModelInfo info_;
  std::map<RequestId, int> live_;
  std::vector<RequestId> cancelled_;
  int steps_ = 0;
  int fail_at_step_;
};

Request request(RequestId id, int tokens) {
  return {.id = id, .prompt = {1, 2}, .sampling = {.max_tokens = tokens}};
}

// What was delivered, and a way to wait for it.
class Mailbox {
 public:
  EngineThread::Deliver deliver() {
    return [this](std::vector<DeliveredEvent> events) {
      const std::lock_guard lock(mutex_);
      for (DeliveredEvent& event : events) {
        if (event.finish != FinishReason::none) {
          ++ends_[event.request];
          reasons_[event.request] = event.finish;
        } else {
          EXPECT_EQ(ends_.count(event.request), 0u) << "nothing comes after the end";
        }
      }
      changed_.notify_all();
    };
  }
  void wait_for_ends(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return ends_.size() >= count; }));
  }
  std::map<RequestId, int> ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  FinishReason reason(RequestId id) {
    const std::lock_guard lock(mutex_);
    return reasons_[id];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, int> ends_;
  std::map<RequestId, FinishReason> reasons_;
};

TEST(EngineThread, ARequestThatTheIdleEngineRefusesLeavesTheQueue) {
  Mailbox mailbox;
  EngineThread thread(std::make_unique<FakeEngine>(), 2, mailbox.deliver());
  for (RequestId id = FakeEngine::first_refused; id < FakeEngine::first_refused + 5; ++id) {
    ASSERT_TRUE(thread.submit({request(id, 1)}).ok()) << "the queue holds two, and none wait";
    mailbox.wait_for_ends(id - FakeEngine::first_refused + 1);
    EXPECT_EQ(thread.counts().load.queued, 0);
  }
}

TEST(EngineThread, EveryAcceptedRequestEndsExactlyOnce) {
  Mailbox mailbox;
  EngineThread engine(std::make_unique<FakeEngine>(), 100'000, mailbox.deliver());
  constexpr int threads = 4, each = 300;
  std::vector<std::thread> clients;
  for (int client = 0; client < threads; ++client) {
    clients.emplace_back([&engine, client] {
      for (int i = 0; i < each; ++i) {
        const auto id = static_cast<RequestId>(client * each + i);
        EXPECT_TRUE(engine.submit({request(id, 1 + i % 7)}).ok());
        if (i % 3 == 0) engine.cancel(id);
        if (i % 5 == 0) engine.cancel(static_cast<RequestId>(client * each + i / 2));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  mailbox.wait_for_ends(threads * each);
  const auto ends = mailbox.ends();
  EXPECT_EQ(ends.size(), static_cast<std::size_t>(threads * each));
  for (const auto& [id, count] : ends) EXPECT_EQ(count, 1) << id;
}

TEST(EngineThread, TheQueueIsBoundedAndTakesAllOrNothing) {
  Mailbox mailbox;
  EngineThread engine(std::make_unique<FakeEngine>(), 2, mailbox.deliver());
  const Status status = engine.submit({request(1, 1), request(2, 1), request(3, 1)});
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(engine.submit({request(4, 1), request(5, 1)}).ok());
  mailbox.wait_for_ends(2);
  EXPECT_EQ(mailbox.ends().count(1), 0u);
}

TEST(EngineThread, WhatCouldNeverRunIsRefusedAtOnce) {
  Mailbox mailbox;
  EngineThread engine(std::make_unique<FakeEngine>(), 10, mailbox.deliver());
  EXPECT_EQ(engine.submit({Request{.id = 1, .prompt = {}}}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(engine.submit({Request{.id = 2, .prompt = {100}}}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(engine.submit({Request{.id = 3, .prompt = {-1}}}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(engine.submit({Request{.id = 4, .prompt = std::vector<TokenId>(64, 1)}}).code(),
            StatusCode::invalid_argument);
}

TEST(EngineThread, AFailedStepEndsEverythingAndRefusesTheRest) {
  Mailbox mailbox;
  EngineThread engine(std::make_unique<FakeEngine>(3), 10, mailbox.deliver());
  EXPECT_TRUE(engine.submit({request(1, 60), request(2, 60)}).ok());
  mailbox.wait_for_ends(2);
  EXPECT_EQ(mailbox.reason(1), FinishReason::error);
  EXPECT_TRUE(engine.failed());
  EXPECT_EQ(engine.submit({request(3, 1)}).code(), StatusCode::internal);
}

TEST(EngineThread, StepsAreCountedByTheirTokensAndTotalsAndCachedTokensPassOn) {
  Mailbox mailbox;
  std::atomic<int> cached = 0;
  const auto deliver = mailbox.deliver();
  EngineThread engine(std::make_unique<FakeEngine>(), 10, [&](std::vector<DeliveredEvent> events) {
    for (const DeliveredEvent& event : events) cached += event.cached_tokens;
    deliver(std::move(events));
  });
  // Submitted together they step together: five tokens, then three, then one.
  EXPECT_TRUE(
      engine.submit({request(1, 1), request(2, 1), request(3, 2), request(4, 2), request(5, 3)}).ok());
  mailbox.wait_for_ends(5);
  const EngineCounts counts = engine.counts();
  EXPECT_EQ(counts.steps_by_tokens[3], 1u) << "five to eight";
  EXPECT_EQ(counts.steps_by_tokens[2], 1u) << "three and four";
  EXPECT_EQ(counts.steps_by_tokens[0], 1u) << "one";
  EXPECT_EQ(counts.totals.preemptions, counts.steps);
  EXPECT_EQ(cached, 16 * (5 + 3 + 1));
}

TEST(EngineThread, EndingItEndsWhatRuns) {
  Mailbox mailbox;
  {
    EngineThread engine(std::make_unique<FakeEngine>(), 10, mailbox.deliver());
    EXPECT_TRUE(engine.submit({request(1, 1'000'000'000)}).ok());
  }
  EXPECT_EQ(mailbox.ends()[1], 1);
  EXPECT_EQ(mailbox.reason(1), FinishReason::cancelled);
}

TEST(EngineThread, TheHeartBeatsWhileThereIsNothingToDo) {
  Mailbox mailbox;
  EngineThread engine(std::make_unique<FakeEngine>(), 10, mailbox.deliver());
  const auto before = engine.heartbeat();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (engine.heartbeat() <= before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(engine.heartbeat(), before);
}

}  // namespace
}  // namespace nibble
