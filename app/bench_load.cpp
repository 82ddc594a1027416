#include "app/bench_load.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct TimedStep {
  double seconds = 0;
  int tokens = 0;
  bool clean = false;
};

// The steps to count, of all of one kind.
StepSummary summarize(std::vector<TimedStep> steps, const TimeTable& times) {
  StepSummary summary{.steps = static_cast<int>(steps.size()), .times = times};
  const auto is_clean = [](const TimedStep& step) { return step.clean; };
  summary.clean_steps = static_cast<int>(std::count_if(steps.begin(), steps.end(), is_clean));
  if (summary.clean_steps > 0) std::erase_if(steps, std::not_fn(is_clean));
  if (steps.empty()) return summary;
  std::sort(steps.begin(), steps.end(), [](const TimedStep& a, const TimedStep& b) {
    return a.seconds / a.tokens < b.seconds / b.tokens;
  });
  std::int64_t tokens = 0, passed = 0;
  for (const TimedStep& step : steps) tokens += step.tokens;
  const TimedStep* median = &steps[0];
  for (const TimedStep& step : steps) {
    median = &step;
    passed += step.tokens;
    if (2 * passed >= tokens) break;
  }
  summary.tokens_per_s = median->tokens / median->seconds;
  summary.step_s = median->seconds;
  summary.step_tokens = median->tokens;
  return summary;
}

// By request.
using Answers = std::unordered_map<RequestId, std::vector<TokenId>>;

class BenchRun {
 public:
  // `known`: answers to predict; none are predicted where it is empty.
  BenchRun(Engine& engine, const BenchLoad& load,
           const std::function<void(std::int64_t, std::int64_t)>& progress, Answers known = {})
      : engine_(engine), load_(load), progress_(progress), known_(std::move(known)) {}

  Result<BenchResult> run(const std::function<bool()>& stopped) {
    const Clock::time_point begin = Clock::now();
    while (!ended()) {
      if (stopped()) return Status(StatusCode::cancelled, "interrupted; nothing was measured");
      NIBBLE_RETURN_IF_ERROR(submit_next());
      NIBBLE_RETURN_IF_ERROR(step());
    }
    BenchResult result{.seconds = seconds_between(begin, Clock::now())};
    NIBBLE_RETURN_IF_ERROR(end_all());
    result.prefill = summarize(std::move(prefill_), prefill_times_);
    if (std::any_of(decode_.begin(), decode_.end(), [&](const TimedStep& s) { return is_full(s); }))
      std::erase_if(decode_, [&](const TimedStep& s) { return !is_full(s); });
    result.decode = summarize(std::move(decode_), decode_times_);
    result.time_to_first_token = percentiles(std::move(first_token_));
    result.inter_token_latency = percentiles(std::move(between_tokens_));
    return result;
  }
  Answers take_answers() { return std::move(answers_); }

 private:
  struct InFlight {
    Clock::time_point submitted, last;
    int tokens = 0;
  };

  bool together() const { return load_.requests == load_.concurrency; }
  // Drafts that hold make it more than one a request.
  bool is_full(const TimedStep& step) const { return step.tokens >= load_.concurrency; }
  bool ended() const { return done_ == load_.requests; }

  Status submit_next() {
    for (; submitted_ < load_.requests && static_cast<int>(in_flight_.size()) < load_.concurrency;
         ++submitted_) {
      const RequestId id = static_cast<RequestId>(submitted_);
      NIBBLE_RETURN_IF_ERROR(engine_.submit(random_request(id)));
      in_flight_[id] = {.submitted = Clock::now(), .last = {}};
    }
    return {};
  }

  Request random_request(RequestId id) const {
    std::mt19937_64 random(load_.seed + id);
    const std::uint64_t vocabulary = static_cast<std::uint64_t>(engine_.model().vocabulary);
    const int prompt = load_.depth + load_.input_len;
    Request request{.id = id, .cache_salt = salt_};
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<TokenId>(random() % vocabulary));
    request.sampling.max_tokens = load_.output_len;
    // The first to decode go on while the others' prompts are read.
    if (together()) request.sampling.max_tokens += load_.concurrency * (prompt / load_.step_tokens + 1);
    request.sampling.temperature = 0;
    if (const auto known = known_.find(id); known != known_.end()) {
      std::vector<TokenId> prediction = known->second;
      for (TokenId& token : prediction) {
        if (static_cast<int>(random() % 100) >= load_.predicted)
          token = static_cast<TokenId>((static_cast<std::uint64_t>(token) + 1) % vocabulary);
      }
      request.prediction = std::make_shared<const std::vector<TokenId>>(std::move(prediction));
    }
    return request;
  }

  Status step() {
    events_.clear();
    times_.clear();
    if (load_.profile) engine_.time_ops(&times_);
    const Result<StepTimes> step = engine_.step(events_);
    engine_.time_ops(nullptr);
    NIBBLE_RETURN_IF_ERROR(step.status());
    count_step(*step);
    const Clock::time_point now = Clock::now();
    for (const Event& event : events_) NIBBLE_RETURN_IF_ERROR(take(event, now));
    if (together()) {
      const bool all_have_theirs = static_cast<int>(in_flight_.size()) + done_ == load_.requests &&
                                   std::all_of(in_flight_.begin(), in_flight_.end(), [&](const auto& each) {
                                     return each.second.tokens >= load_.output_len;
                                   });
      if (all_have_theirs) done_ = load_.requests;
    }
    const std::int64_t each = load_.depth + load_.input_len + load_.output_len;
    progress_(std::min(tokens_, load_.requests * each), load_.requests * each);
    return {};
  }

  void count_step(const StepTimes& step) {
    tokens_ += step.prefill_tokens + step.decode_tokens;
    const bool clean = step.cpu_seconds >= clean_share * load_.cpus * step.seconds;
    if (step.decode_tokens == 0 && step.prefill_tokens > 0 && step.last_prefill_position >= load_.depth) {
      prefill_.push_back({step.seconds, step.prefill_tokens, clean});
      prefill_times_.add(times_);
    }
    if (step.prefill_tokens == 0 && step.decode_tokens > 0) {
      decode_.push_back({step.seconds, step.decode_tokens, clean});
      decode_times_.add(times_);
    }
  }

  Status take(const Event& event, Clock::time_point now) {
    if (event.finish == FinishReason::error) return internal_error(event.error);
    if (event.token >= 0) answers_[event.request].push_back(event.token);
    InFlight& request = in_flight_[event.request];
    if (request.tokens++ == 0) {
      first_token_.push_back(seconds_between(request.submitted, now));
    } else {
      between_tokens_.push_back(seconds_between(request.last, now));
    }
    request.last = now;
    if (event.finish == FinishReason::none) return {};
    in_flight_.erase(event.request);
    ++done_;
    return {};
  }

  // What still runs has given all that was asked of it.
  Status end_all() {
    for (const auto& [id, request] : in_flight_) engine_.cancel(id);
    while (!engine_.idle()) {
      events_.clear();
      NIBBLE_RETURN_IF_ERROR(engine_.step(events_).status());
    }
    return {};
  }

  Engine& engine_;
  const BenchLoad& load_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  const Answers known_;
  Answers answers_;
  std::unordered_map<RequestId, InFlight> in_flight_;
  std::vector<double> first_token_, between_tokens_;
  std::vector<TimedStep> prefill_, decode_;
  // A load of this one's prompts may have run before; its pages are not for this one.
  const std::string salt_ = std::to_string(Clock::now().time_since_epoch().count());
  TimeTable times_, prefill_times_, decode_times_;
  std::vector<Event> events_;
  std::int64_t tokens_ = 0;
  int submitted_ = 0, done_ = 0;
};

}  // namespace

Percentiles percentiles(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](int percent) {
    const std::size_t rank = (samples.size() * static_cast<std::size_t>(percent) + 99) / 100;
    return samples[std::max<std::size_t>(rank, 1) - 1];
  };
  return {.p50 = at(50), .p90 = at(90), .p99 = at(99)};
}

Result<BenchResult> run_bench(Engine& engine, const BenchLoad& load,
                              const std::function<void(std::int64_t, std::int64_t)>& progress,
                              const std::function<bool()>& stopped) {
  if (load.predicted == 0) return BenchRun(engine, load, progress).run(stopped);
  const std::function<void(std::int64_t, std::int64_t)> untold = [](std::int64_t, std::int64_t) {};
  BenchRun before(engine, load, untold);
  NIBBLE_RETURN_IF_ERROR(before.run(stopped).status());
  return BenchRun(engine, load, progress, before.take_answers()).run(stopped);
}

}  // namespace nibble
