// The gated delta rule of one layer at the shapes of Qwen3.5-35B-A3B: 16 heads of keys, 32 of values, 128
// dimensions each. Decode: eight sequences of one row, in the middle of a chunk behind the first. Prefill:
// one sequence of 512 rows behind the first chunk.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "ops/gated_delta/delta_test_util.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

constexpr DeltaShape shape{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4};

void run(benchmark::State& state, int sequences, int rows, int first_position) {
  ThreadPool pool(static_cast<int>(state.range(0)), ThreadPool::Pinning::one_cpu_each);
  OpContext context{.threads = pool};
  std::mt19937 random(1);
  const auto floats = [&](int count, float most) {
    return random_floats(random, static_cast<std::size_t>(count), most);
  };
  const int all = sequences * rows;
  const std::vector<float> given = floats(all * shape.channels(), 1), b = floats(all * shape.value_heads, 1),
                           a = floats(all * shape.value_heads, 1), rate = floats(shape.value_heads, 1),
                           bias = floats(shape.value_heads, 1),
                           weight = floats(shape.taps * shape.channels(), 1);
  std::vector<float> qkv(given.size()), out(static_cast<std::size_t>(all * shape.values()));
  DeltaSlots slots(shape, sequences);
  std::vector<StateRows> step;
  for (int i = 0; i < sequences; ++i) {
    const DeltaState kept = slots.layer().slot(i);
    std::fill_n(kept.decays, delta_chunk * shape.value_heads, -0.5);
    std::fill_n(kept.state, shape.value_heads * shape.key_dim * shape.value_dim, 0.01f);
    std::fill_n(kept.keys, delta_chunk * shape.keys(), 0.1f);
    std::fill_n(kept.updates, delta_chunk * shape.values(), 0.1f);
    std::fill_n(kept.inputs, shape.kept_inputs() * shape.channels(), 0.1f);
    step.push_back({.row_begin = i * rows, .row_count = rows, .first_position = first_position, .slot = i});
  }
  for (auto _ : state) {
    short_convolution(context, {.x = given.data(),
                                .weight = weight.data(),
                                .sequences = step,
                                .layer = slots.layer(),
                                .out = qkv.data()});
    gated_delta(context, {.qkv = qkv.data(),
                          .b = b.data(),
                          .a = a.data(),
                          .gates = {.rate = rate.data(), .bias = bias.data()},
                          .sequences = step,
                          .layer = slots.layer(),
                          .out = out.data()});
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(all), benchmark::Counter::kIsIterationInvariantRate);
}

void decode(benchmark::State& state) { run(state, 8, 1, 96); }
void prefill(benchmark::State& state) { run(state, 1, 512, 64); }

BENCHMARK(decode)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(prefill)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
