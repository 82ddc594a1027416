#include "app/bench_load.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <unordered_map>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Tokens and time of the steps of one kind.
struct StepSum {
  double seconds = 0;
  std::int64_t tokens = 0;
  std::int64_t steps = 0;

  void add(const StepTimes& step, int step_tokens) {
    seconds += step.seconds;
    tokens += step_tokens;
    ++steps;
  }
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

Request random_request(const BenchLoad& load, int vocabulary, RequestId id) {
  std::mt19937_64 random(load.seed + id);
  Request request{.id = id};
  for (int i = 0; i < load.input_len; ++i) {
    request.prompt.push_back(static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocabulary)));
  }
  request.sampling.max_tokens = load.output_len;
  request.sampling.temperature = 0;
  return request;
}

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
                              const std::function<void(int, int)>& progress,
                              const std::function<bool()>& stopped) {
  struct InFlight {
    Clock::time_point submitted, last;
    int tokens = 0;
  };
  std::unordered_map<RequestId, InFlight> in_flight;
  std::vector<double> first_token, between_tokens;
  StepSum prefill, decode;
  std::vector<Event> events;
  int submitted = 0, done = 0;
  const Clock::time_point begin = Clock::now();
  while (done < load.requests) {
    if (stopped()) return Status(StatusCode::cancelled, "interrupted; nothing was measured");
    for (; submitted < load.requests && static_cast<int>(in_flight.size()) < load.concurrency; ++submitted) {
      const RequestId id = static_cast<RequestId>(submitted);
      NIBBLE_RETURN_IF_ERROR(engine.submit(random_request(load, engine.model().vocabulary, id)));
      in_flight[id] = {.submitted = Clock::now(), .last = {}};
    }
    events.clear();
    NIBBLE_ASSIGN(const StepTimes step, engine.step(events));
    if (step.decode_tokens == 0) prefill.add(step, step.prefill_tokens);
    if (step.prefill_tokens == 0) decode.add(step, step.decode_tokens);
    const Clock::time_point now = Clock::now();
    for (const Event& event : events) {
      if (event.finish == FinishReason::error) return internal_error(event.error);
      InFlight& request = in_flight[event.request];
      if (request.tokens++ == 0) {
        first_token.push_back(seconds_between(request.submitted, now));
      } else {
        between_tokens.push_back(seconds_between(request.last, now));
      }
      request.last = now;
      if (event.finish == FinishReason::none) continue;
      in_flight.erase(event.request);
      progress(++done, load.requests);
    }
  }
  BenchResult result{.seconds = seconds_between(begin, Clock::now()),
                     .prefill_tokens_per_s = prefill.tokens_per_s(),
                     .decode_tokens_per_s = decode.tokens_per_s(),
                     .time_to_first_token = percentiles(std::move(first_token)),
                     .inter_token_latency = percentiles(std::move(between_tokens))};
  if (decode.steps > 0) {
    result.decode_steps_per_s = static_cast<double>(decode.steps) / decode.seconds;
    result.tokens_a_decode_step = static_cast<double>(decode.tokens) / static_cast<double>(decode.steps);
  }
  return result;
}

}  // namespace nibble
