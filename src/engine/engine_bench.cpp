// A step of the bundled model.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "engine/engine.h"

namespace nibble {
namespace {

void decode(benchmark::State& state) {
  const int sequences = static_cast<int>(state.range(0));
  EngineOptions options{.threads = static_cast<int>(state.range(1)), .max_num_seqs = sequences};
  options.model = (std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/demo").string();
  auto loaded = Engine::load(options);
  if (!loaded.ok()) return state.SkipWithError(loaded.status().message().c_str());
  Engine& engine = **loaded;
  std::vector<Event> events;
  RequestId id = 0;
  std::int64_t tokens = 0;
  for (auto _ : state) {
    state.PauseTiming();
    while (engine.load_now().queued + engine.load_now().running < sequences) {
      ++id;
      (void)engine.submit({.id = id,
                           .prompt = {static_cast<TokenId>(id % 6000)},
                           .sampling = {.max_tokens = 1000, .temperature = 0}});
    }
    events.clear();
    state.ResumeTiming();
    if (!engine.step(events).ok()) return state.SkipWithError("a step failed");
    tokens += static_cast<std::int64_t>(events.size());
  }
  state.SetItemsProcessed(tokens);
}

BENCHMARK(decode)
    ->ArgNames({"sequences", "threads"})
    ->ArgsProduct({{1, 8, 64}, {1, 2}})
    ->Unit(benchmark::kMicrosecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
