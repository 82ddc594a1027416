// Latent attention of one layer at the shapes of GLM-4.7-Flash (20 heads) and of an eighth of DeepSeek-V3 (16
// heads): latents of 512 and 64. Decode: one row. Prefill: 64 rows.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "ops/latent_attention/latent_attention.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

constexpr int rank = 512, rotated = 64, page_size = 16;

void attend(benchmark::State& state, DType dtype, int heads, int rows) {
  const int threads = static_cast<int>(state.range(0)), first = static_cast<int>(state.range(1));
  ThreadPool pool(threads, ThreadPool::Pinning::one_cpu_each);
  OpContext context{.threads = pool};
  std::mt19937 random(1);
  const int positions = first + rows, page_count = (positions + page_size - 1) / page_size;
  std::vector<std::byte> vectors(static_cast<std::size_t>(page_count * page_size * (rank + rotated)) *
                                 dtype_bytes(dtype));
  const LatentLayer cache{.vectors = vectors.data(),
                          .dtype = dtype,
                          .pages = page_count,
                          .page_size = page_size,
                          .rank = rank,
                          .rotated = rotated};
  std::vector<std::int32_t> pages;
  for (std::int32_t page = 0; page < page_count; ++page) pages.push_back(page);
  std::vector<float> given = random_floats(random, static_cast<std::size_t>(positions * (rank + rotated)));
  const std::vector<float> turn(static_cast<std::size_t>(positions * rotated / 2), 0.7f);
  const std::vector<Bf16> norm = random_bf16(random, rank);
  const SequenceRows everything{.row_count = positions, .pages = pages};
  latent_append(context, {.latents = given.data(),
                          .norm = norm.data(),
                          .eps = 1e-6f,
                          .cos = turn.data(),
                          .sin = turn.data(),
                          .sequences = {&everything, 1},
                          .cache = cache});
  const std::vector<float> q =
      random_floats(random, static_cast<std::size_t>(rows * heads * (rank + rotated)));
  std::vector<float> out(static_cast<std::size_t>(rows * heads * rank));
  std::vector<float> room(static_cast<std::size_t>(latent_attention_room(threads, heads, rank, positions)));
  const SequenceRows step{.row_count = rows, .first_position = first, .pages = pages};
  for (auto _ : state) {
    latent_attention(context, {.q = q.data(),
                               .heads = heads,
                               .sequences = {&step, 1},
                               .cache = cache,
                               .scale = 0.07f,
                               .out = out.data(),
                               .room = room});
    benchmark::DoNotOptimize(out.data());
  }
  const double seen = static_cast<double>(rows) * (first + (rows + 1) / 2.0);
  state.counters["GMAC/s"] = benchmark::Counter(seen * heads * (2 * rank + rotated) * 1e-9,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  for (const DType dtype : {DType::bf16, DType::f32, DType::f8_e4m3}) {
    for (const int heads : {16, 20}) {
      for (const int rows : {1, 64}) {
        const std::string name = std::string(rows == 1 ? "decode/" : "prefill_64/") +
                                 std::string(dtype_name(dtype)) + "/heads:" + std::to_string(heads);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { attend(state, dtype, heads, rows); })
            ->ArgNames({"threads", "context"})
            ->ArgsProduct({{1, 2}, {4095}})
            ->Unit(benchmark::kMicrosecond)
            ->UseRealTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
