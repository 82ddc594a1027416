// An engine on a thread of its own: requests may come from any thread, events go out once a step.
//
// The queue is bounded: what was submitted and has not begun counts. Every accepted request ends with exactly
// one event whose finish is not `none`, also when it is cancelled, when the engine fails and when the thread
// is stopped. An idle engine tests itself now and then, of which no event and no count of tokens tells.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "engine/self_test.h"

namespace nibble {

// An event that owns what it tells.
struct DeliveredEvent {
  RequestId request = 0;
  TokenId token = -1;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  FinishReason finish = FinishReason::none;
  bool predicted = false;
  int failed_predictions = 0;
  int cached_tokens = 0;
  std::optional<std::chrono::nanoseconds> begun;
  std::vector<float> prompt_logprobs;
  std::vector<TokenLogprob> prompt_top;
  std::vector<int> prompt_ranks;
  std::string error;
};

struct EngineCounts {
  std::uint64_t steps = 0;  // since the start, and so on
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generated_tokens = 0;
  // Steps by their tokens: [i] counts those of more than 2^(i-1) and at most 2^i, the last one the rest too.
  std::array<std::uint64_t, 16> steps_by_tokens{};
  double step_seconds = 0;
  EngineTotals totals;
  RanTable ran;
  std::uint64_t self_tests = 0;  // that found what the first one did
  EngineLoad load;               // after the last step, with what was submitted since among the queued
};

class EngineThread {
 public:
  // `deliver` gets a step's events on the engine's thread and must not wait.
  using Deliver = std::function<void(std::vector<DeliveredEvent> events)>;

  // An engine that has been idle for `test_idle_every` tests itself, and so does one that begins; 0: never.
  // A test that fails fails the engine.
  EngineThread(std::unique_ptr<Engine> engine, int most_waiting, Deliver deliver,
               std::chrono::nanoseconds test_idle_every = {});
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  ~EngineThread();  // cancels what runs

  const ModelInfo& model() const { return engine_->model(); }

  // resource_exhausted when the queue is full, invalid_argument when the request could never run; then
  // nothing is delivered for it. Ids are the caller's and not in use. All of them, or none. They join the
  // same step, so the choices of one prompt run side by side.
  Status submit(std::vector<Request> requests);
  void cancel(RequestId id);
  EngineCounts counts() const;
  // The last time a step ended or the engine had nothing to do.
  std::chrono::steady_clock::time_point heartbeat() const;
  // Whether a step runs; else the heart beats four times a second.
  bool is_in_a_step() const { return in_a_step_; }
  // Whether the engine failed for good; then all requests are refused.
  bool failed() const { return failed_; }
  // What the engine's ranks have found of each other, which a step that does not come back cannot say.
  Status found_by_ranks() const { return engine_->failure(); }
  // Why it failed; empty where it has not.
  std::string failure() const;

 private:
  void serve();
  void take_commands();
  void step();
  Result<StepTimes> run_step();
  bool test_is_due() const;
  void test();
  void fail(const Status& status);
  void end_all(FinishReason finish, const std::string& error);

  std::unique_ptr<Engine> engine_;
  const int most_waiting_;
  Deliver deliver_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Request> submitted_;    // guarded by mutex_
  std::vector<RequestId> cancelled_;  // guarded by mutex_
  EngineCounts counts_;               // guarded by mutex_
  std::string failure_;               // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  std::atomic<bool> failed_ = false, in_a_step_ = false;
  std::atomic<std::chrono::steady_clock::rep> heartbeat_;

  std::unordered_set<RequestId> live_;  // on the thread alone: begun and not ended
  std::vector<Event> events_;
  SelfTest self_test_;
  const std::chrono::nanoseconds test_idle_every_;
  std::optional<std::chrono::steady_clock::time_point> last_work_;  // nothing: there was none yet
  std::thread thread_;                                              // last: it uses all of the above
};

}  // namespace nibble
