// A whole plan, from options to choices, memory and bound.
#include <benchmark/benchmark.h>

#include "plan/plan.h"

namespace nibble {
namespace {

void resolve_on(benchmark::State& state, const char* name) {
  const Machine machine = declared_machine(name).value();
  ModelTraits model{.name = "m",
                    .layers = 24,
                    .hidden = 2880,
                    .vocabulary = 201088,
                    .max_positions = 131072,
                    .full_layers = 24,
                    .heads = 64,
                    .kv_heads = 8,
                    .query_dim = 64,
                    .value_dim = 64,
                    .kv_values = 1024,
                    .experts = 32,
                    .experts_per_token = 4,
                    .expert_width = 2880,
                    .expert_layers = 24,
                    .expert_format = StoredFormat::mxfp4};
  model.weights = {{.name = "all", .values = 20'000'000'000, .bytes = 13'000'000'000}};
  for (auto _ : state) benchmark::DoNotOptimize(resolve({}, machine, model));
}
BENCHMARK_CAPTURE(resolve_on, cpu, "cpu");
BENCHMARK_CAPTURE(resolve_on, h200x4, "h200x4");

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
