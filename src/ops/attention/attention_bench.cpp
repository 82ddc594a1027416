// Attention as gpt-oss-20b has it: 64 query heads, 8 KV heads of 64, half of its 24 layers in a window of
// 128. A step goes through all layers' caches, which together are larger than the processor's caches.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"

namespace nibble {
namespace {

constexpr int heads = 64, kv_heads = 8, head_dim = 64, layers = 24, page_size = 16, window = 128;

struct Step {
  ThreadPool pool;
  OpContext context;
  std::vector<std::byte> memory;
  std::vector<KvLayer> caches;
  std::vector<std::int32_t> pages;
  std::vector<float> q, out, room;
  SequenceRows rows;

  Step(const AttentionKernels& kernel, int threads, DType dtype, int first_position, int row_count)
      : pool(threads, ThreadPool::Pinning::one_cpu_each), context{.threads = pool, .attention = kernel} {
    const int positions = first_position + row_count;
    const std::int32_t page_count = (positions + page_size - 1) / page_size;
    const std::size_t half =
        static_cast<std::size_t>(page_count) * page_size * kv_heads * head_dim * dtype_bytes(dtype);
    memory.resize(half * 2 * layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      caches.push_back({.keys = memory.data() + 2 * layer * half,
                        .values = memory.data() + (2 * layer + 1) * half,
                        .dtype = dtype,
                        .pages = page_count,
                        .page_size = page_size,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim});
    }
    for (std::int32_t page = 0; page < page_count; ++page) pages.push_back(page);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> vectors(static_cast<std::size_t>(positions) * kv_heads * head_dim);
    for (float& x : vectors) x = normal(random);
    const SequenceRows all{.row_count = positions, .pages = pages};
    for (const KvLayer& cache : caches)
      kv_append(context,
                {.keys = vectors.data(), .values = vectors.data(), .sequences = {&all, 1}, .cache = cache});
    q.resize(static_cast<std::size_t>(row_count) * heads * head_dim);
    for (float& x : q) x = normal(random);
    out.resize(q.size());
    room.resize(static_cast<std::size_t>(attention_room(threads, heads, kv_heads, head_dim, positions)));
    rows = {.row_count = row_count, .first_position = first_position, .pages = pages};
  }

  void run() {
    for (int layer = 0; layer < layers; ++layer) {
      paged_attention(context, {.q = q.data(),
                                .heads = heads,
                                .sequences = {&rows, 1},
                                .cache = caches[static_cast<std::size_t>(layer)],
                                .window = layer % 2 == 0 ? window : 0,
                                .scale = 0.125f,
                                .out = out.data(),
                                .room = room});
    }
  }
};

// Multiply-adds and bytes of keys and values that a step of these rows needs.
void count_work(benchmark::State& state, DType dtype, int first_position, int rows) {
  double seen = 0, read = 0;
  for (int row = 0; row < rows; ++row) {
    const int position = first_position + row;
    seen += layers / 2 * (position + 1 + std::min(position + 1, window));
  }
  read = layers / 2 * (first_position + rows + std::min(first_position + rows, window + rows - 1)) * 2.0 *
         kv_heads * head_dim * static_cast<double>(dtype_bytes(dtype));
  state.counters["GMAC/s"] =
      benchmark::Counter(seen * 2 * heads * head_dim * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(read * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void attention_step(benchmark::State& state, const AttentionKernels& kernel, DType dtype, int rows) {
  if (!kernel.supported()) return state.SkipWithError("this machine lacks the instructions");
  const int threads = static_cast<int>(state.range(0)), first_position = static_cast<int>(state.range(1));
  Step step(kernel, threads, dtype, first_position, rows);
  for (auto _ : state) step.run();
  count_work(state, dtype, first_position, rows);
}

void append_rows(benchmark::State& state, DType dtype) {
  Step step(best_attention_kernels(), static_cast<int>(state.range(0)), dtype, 0, 512);
  const std::vector<float> vectors(static_cast<std::size_t>(512) * kv_heads * head_dim, 0.7f);
  for (auto _ : state) {
    for (const KvLayer& cache : step.caches)
      kv_append(
          step.context,
          {.keys = vectors.data(), .values = vectors.data(), .sequences = {&step.rows, 1}, .cache = cache});
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  for (const AttentionKernels& kernel : attention_kernels()) {
    if (kernel.name == "scalar") continue;
    for (DType dtype : {DType::bf16, DType::f32, DType::f8_e4m3}) {
      const std::string name = std::string(kernel.name) + "/" + std::string(dtype_name(dtype));
      benchmark::RegisterBenchmark(("decode/" + name).c_str(), attention_step, kernel, dtype, 1)
          ->ArgNames({"threads", "context"})
          ->ArgsProduct({{1, 2}, {1023, 4095, 16383}})
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
      benchmark::RegisterBenchmark(("prefill_512/" + name).c_str(), attention_step, kernel, dtype, 512)
          ->ArgNames({"threads", "context"})
          ->ArgsProduct({{1, 2}, {0, 3584}})
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  for (DType dtype : {DType::bf16, DType::f32, DType::f8_e4m3}) {
    benchmark::RegisterBenchmark(("append_512/" + std::string(dtype_name(dtype))).c_str(), append_rows, dtype)
        ->Arg(1)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
