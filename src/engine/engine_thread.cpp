#include "engine/engine_thread.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/thread_name.h"

namespace nibble {
namespace {

std::chrono::steady_clock::rep now_ticks() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine, int most_waiting, Deliver deliver,
                           std::chrono::nanoseconds test_idle_every)
    : engine_(std::move(engine)),
      most_waiting_(most_waiting),
      deliver_(std::move(deliver)),
      heartbeat_(now_ticks()),
      self_test_(engine_->model().vocabulary),
      test_idle_every_(test_idle_every) {
  counts_.load = engine_->load_now();
  thread_ = std::thread([this] { serve(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Status EngineThread::submit(std::vector<Request> requests) {
  const ModelInfo& info = model();
  for (const Request& request : requests) {
    if (request.prompt.empty()) return invalid_argument("the prompt is empty; give at least one token");
    const std::size_t room =
        static_cast<std::size_t>(info.max_model_len) - (request.sampling.max_tokens > 0 ? 1 : 0);
    if (request.prompt.size() > room) {
      return invalid_argument("the prompt has " + std::to_string(request.prompt.size()) +
                              " tokens and the context holds " + std::to_string(info.max_model_len) +
                              "; shorten the prompt");
    }
    for (const TokenId id : request.prompt) {
      if (id >= 0 && id < info.vocabulary) continue;
      return invalid_argument("token id " + std::to_string(id) +
                              " is outside the vocabulary; ids go from 0 to " +
                              std::to_string(info.vocabulary - 1));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || stopping_) return internal_error("the engine has stopped");
    const std::size_t waiting = submitted_.size() + static_cast<std::size_t>(counts_.load.queued);
    if (waiting + requests.size() > static_cast<std::size_t>(most_waiting_)) {
      return resource_exhausted(std::to_string(waiting) + " requests are waiting and the queue holds " +
                                std::to_string(most_waiting_) + "; try again later");
    }
    for (Request& request : requests) submitted_.push_back(std::move(request));
  }
  wake_.notify_one();
  return {};
}

void EngineThread::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  wake_.notify_one();
}

EngineCounts EngineThread::counts() const {
  const std::lock_guard lock(mutex_);
  EngineCounts counts = counts_;
  counts.load.queued += static_cast<int>(submitted_.size());
  return counts;
}

std::chrono::steady_clock::time_point EngineThread::heartbeat() const {
  return std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(heartbeat_.load()));
}

void EngineThread::serve() {
  name_this_thread("engine-steps");
  while (true) {
    Status found;  // ranks may be lost while they wait for work
    {
      std::unique_lock lock(mutex_);
      // Idle, the heart beats four times a second.
      while (submitted_.empty() && cancelled_.empty() && !stopping_ && live_.empty() && !test_is_due()) {
        heartbeat_ = now_ticks();
        wake_.wait_for(lock, std::chrono::milliseconds(250));
        if (!failed_) found = engine_->failure();
        if (!found.ok()) break;
      }
      if (stopping_) break;
    }
    if (!found.ok()) fail(found);
    if (live_.empty() && test_is_due()) test();
    take_commands();
    if (!live_.empty()) step();
    heartbeat_ = now_ticks();
  }
  end_all(FinishReason::cancelled, "");
}

bool EngineThread::test_is_due() const {
  constexpr int needed = SelfTest::prompt_tokens + SelfTest::answer_tokens;
  if (test_idle_every_.count() == 0 || failed_ || model().max_model_len < needed) return false;
  return !last_work_ || std::chrono::steady_clock::now() - *last_work_ >= test_idle_every_;
}

// Requests that come meanwhile wait for its steps, of a few rows.
void EngineThread::test() {
  Status status = engine_->submit(self_test_.begin());
  for (bool ended = false; !ended && status.ok();) {
    const Result<StepTimes> times = run_step();
    status = times.status();
    heartbeat_ = now_ticks();
    for (const Event& event : events_) {
      if (!status.ok()) break;
      ended = event.finish != FinishReason::none;
      status = self_test_.take(event);
    }
  }
  last_work_ = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    counts_.self_tests = self_test_.runs();
    counts_.totals = engine_->totals();
    if (status.ok()) counts_.ran = engine_->ran();
  }
  if (!status.ok()) fail(status);
}

void EngineThread::take_commands() {
  std::vector<Request> submitted;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
    counts_.load.queued += static_cast<int>(submitted.size());  // until the next step knows better
  }
  std::vector<DeliveredEvent> refused;
  for (Request& request : submitted) {
    const RequestId id = request.id;
    if (const Status status =
            failed_ ? internal_error("the engine has stopped") : engine_->submit(std::move(request));
        status.ok()) {
      live_.insert(id);
    } else {
      refused.push_back({.request = id, .finish = FinishReason::error, .error = status.message()});
    }
  }
  for (const RequestId id : cancelled) {
    if (live_.contains(id)) engine_->cancel(id);
  }
  if (!refused.empty()) {
    // No step may follow to count anew.
    const std::lock_guard lock(mutex_);
    counts_.load.queued -= static_cast<int>(refused.size());
  }
  if (!refused.empty()) deliver_(std::move(refused));
}

Result<StepTimes> EngineThread::run_step() {
  events_.clear();
  in_a_step_ = true;
  Result<StepTimes> times = engine_->step(events_);
  in_a_step_ = false;
  return times;
}

void EngineThread::step() {
  const Result<StepTimes> times = run_step();
  last_work_ = std::chrono::steady_clock::now();
  std::vector<DeliveredEvent> delivered;
  delivered.reserve(events_.size());
  std::uint64_t generated = 0;
  for (Event& event : events_) {
    if (!live_.contains(event.request)) continue;
    generated += event.token >= 0 ? 1 : 0;
    if (event.finish != FinishReason::none) live_.erase(event.request);
    delivered.push_back({.request = event.request,
                         .token = event.token,
                         .logprob = event.logprob,
                         .top = {event.top.begin(), event.top.end()},
                         .finish = event.finish,
                         .predicted = event.predicted,
                         .failed_predictions = event.failed_predictions,
                         .cached_tokens = event.cached_tokens,
                         .begun = event.begun,
                         .prompt_logprobs = std::move(event.prompt_logprobs),
                         .prompt_top = std::move(event.prompt_top),
                         .prompt_ranks = std::move(event.prompt_ranks),
                         .error = std::move(event.error)});
  }
  {
    const std::lock_guard lock(mutex_);
    ++counts_.steps;
    counts_.generated_tokens += generated;
    if (times.ok()) {
      const auto tokens = static_cast<std::uint64_t>(times->prefill_tokens + times->decode_tokens);
      const auto bin = static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(tokens, 1) - 1));
      if (tokens > 0) ++counts_.steps_by_tokens[std::min(bin, counts_.steps_by_tokens.size() - 1)];
      counts_.prompt_tokens += static_cast<std::uint64_t>(times->prefill_tokens);
      counts_.step_seconds += times->seconds;
    }
    counts_.totals = engine_->totals();
    // A rank that was given up may still be counting.
    if (times.ok()) counts_.ran = engine_->ran();
    counts_.load = engine_->load_now();
  }
  if (!delivered.empty()) deliver_(std::move(delivered));
  if (!times.ok()) fail(times.status());
}

void EngineThread::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = status.message();
  }
  failed_ = true;
  end_all(FinishReason::error, status.message());
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// What was submitted and not taken ends too.
void EngineThread::end_all(FinishReason finish, const std::string& error) {
  std::vector<DeliveredEvent> last;
  for (const RequestId id : live_) last.push_back({.request = id, .finish = finish, .error = error});
  live_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (const Request& request : submitted_)
      last.push_back({.request = request.id, .finish = finish, .error = error});
    submitted_.clear();
    counts_.load.queued = counts_.load.running = 0;
  }
  if (!last.empty()) deliver_(std::move(last));
}

}  // namespace nibble
