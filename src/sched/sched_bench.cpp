// What scheduling costs a step: planning and committing 64 sequences that decode, with the page cache behind
// it and no model. One more sequence arrives and one leaves every few steps, as in service.
#include <benchmark/benchmark.h>

#include "sched/scheduler.h"

namespace nibble {
namespace {

constexpr int sequences = 64;

Request request(RequestId id, int prompt) {
  Request made{.id = id};
  for (int i = 0; i < prompt; ++i)
    made.prompt.push_back(static_cast<TokenId>(id * 37 + static_cast<RequestId>(i)));
  made.sampling.max_tokens = 400;
  return made;
}

void steps(benchmark::State& state) {
  const bool ahead = state.range(0) != 0;
  PageCache pages({.page_size = 16, .page_count = {8192, 2048}, .window = 128, .key = {1, 2}});
  Scheduler scheduler({.max_num_seqs = sequences,
                       .max_num_batched_tokens = 512,
                       .max_logit_rows = 128,
                       .max_model_len = 4096},
                      pages);
  RequestId next_id = 0;
  std::vector<Event> events;
  events.reserve(256);
  std::vector<StepResult> results(sequences);
  const Batch* running = nullptr;
  TokenId token = 0;
  for (auto _ : state) {
    state.PauseTiming();
    while (scheduler.queued() + scheduler.running() < sequences) {
      ++next_id;
      (void)scheduler.submit(request(next_id, 64 + static_cast<int>(next_id % 512)));
    }
    events.clear();
    for (StepResult& result : results) result.token = ++token % 5000;
    state.ResumeTiming();
    if (running == nullptr) running = &scheduler.plan({}, events);
    const Batch* following = nullptr;
    const std::size_t count = running->sequences.size();
    if (ahead) following = &scheduler.plan_ahead({}, events);
    scheduler.commit(std::span(results).first(count), events);
    running = following != nullptr && !following->empty() ? following : nullptr;
  }
  state.counters["running"] = scheduler.running();
}

BENCHMARK(steps)->ArgName("ahead")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
