// Speed of the matrix products at gpt-oss-20b's shapes: every kind of kernels the machine has, every format
// of weights and way to ask for them, 1 to 128 inputs, 1 and 2 threads. Weights rotate through more memory
// than the caches hold, and begin where a checkpoint's do, 48 and 112 bytes past a multiple of 128 in turn.
// Beside GB/s of weights and GMAC/s: `of_read`, the share of this machine's read speed on as many threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

constexpr int rows = 2880, cols = 2880;
constexpr std::size_t code_bytes = std::size_t{704} << 20;
constexpr std::size_t scale_bytes = code_bytes / mxfp4_block_bytes;
constexpr int most_past = 112;

struct Weights {
  AlignedBytes codes;
  std::vector<std::uint8_t> scales;

  Weights() : codes(code_bytes + most_past), scales(scale_bytes) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < code_bytes + most_past; i += 8) {
      const std::uint64_t four =
          (random() & 0x80ff80ff80ff80ffu) | 0x3f003f003f003f00u;  // ordinary as bfloat16 too
      std::memcpy(codes.data() + i, &four, sizeof four);
    }
    for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(118 + random() % 5);
  }
};

Weights& weights() {
  static Weights all;
  return all;
}

constexpr std::int64_t matrix_size = std::int64_t{rows} * cols;

struct Format {
  const char* name;
  double bytes_a_weight;
  WeightMatrix (*matrix)(std::int64_t index);
};

const std::uint8_t* codes_at(std::int64_t index, std::int64_t bytes) {
  const std::int64_t count = static_cast<std::int64_t>(code_bytes) / bytes;
  static_assert(matrix_size / 2 % 128 == 0 && most_past == 48 + 64);
  return reinterpret_cast<const std::uint8_t*>(weights().codes.data()) + index % count * bytes +
         (index % 2 == 0 ? 48 : most_past);
}
const std::uint8_t* scales_at(std::int64_t index) {
  constexpr std::int64_t bytes = std::int64_t{rows} * cols / 32;
  return weights().scales.data() + index % (static_cast<std::int64_t>(scale_bytes) / bytes) * bytes;
}

constexpr Format formats[] = {
    {"mxfp4", 17.0 / 32,
     [](std::int64_t i) -> WeightMatrix {
       return Mxfp4Checkpoint{codes_at(i, matrix_size / 2), scales_at(i), rows, cols};
     }},
    {"q8", 33.0 / 32,
     [](std::int64_t i) -> WeightMatrix {
       return Q8Matrix{reinterpret_cast<const std::int8_t*>(codes_at(i, matrix_size)), scales_at(i), rows,
                       cols};
     }},
    {"bf16", 2,
     [](std::int64_t i) -> WeightMatrix {
       return Bf16Matrix{reinterpret_cast<const Bf16*>(codes_at(i, 2 * matrix_size)), rows, cols};
     }},
};

// Bytes a second that `threads` threads read, the best of three passes over the weights.
double read_speed(int threads) {
  static std::map<int, double> known;
  if (const auto found = known.find(threads); found != known.end()) return found->second;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(weights().codes.data());
  ThreadPool pool(threads, ThreadPool::Pinning::one_cpu_each);
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(threads, [&](int begin, int end) {
      const std::size_t n = code_bytes / 8, share = n / static_cast<std::size_t>(threads);
      std::uint64_t sums[16] = {};
      for (std::size_t i = static_cast<std::size_t>(begin) * share;
           i + 16 <= static_cast<std::size_t>(end) * share; i += 16) {
        for (std::size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
      }
      benchmark::DoNotOptimize(sums);
    });
    best =
        std::max(best, static_cast<double>(code_bytes) /
                           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  known[threads] = best;
  return best;
}

void multiply(benchmark::State& state, const DotKernels& kernels, const Format& format, InputValues values,
              WeightLines lines, int count, int threads) {
  ThreadPool pool(threads, ThreadPool::Pinning::one_cpu_each);
  OpContext context{.threads = pool, .dots = kernels, .activations = values, .weight_lines = lines};
  std::mt19937 random(2);
  std::vector<float> x = random_floats(random, static_cast<std::size_t>(count) * cols);
  for (float& value : x) value = Bf16::from_float(value).to_float();
  std::vector<float> y(static_cast<std::size_t>(count) * rows);
  AlignedBytes room(linear_workspace_bytes(count, cols));
  const double read = read_speed(threads);
  std::int64_t index = 0;
  for (auto _ : state) {
    linear(context, {.x = x.data(),
                     .rows = count,
                     .weight = format.matrix(index++),
                     .y = y.data(),
                     .workspace = room.span()});
    benchmark::DoNotOptimize(y.data());
  }
  const double done = static_cast<double>(state.iterations()) * static_cast<double>(matrix_size);
  const auto rate = benchmark::Counter::kIsRate;
  state.counters["GB/s"] = benchmark::Counter(done * format.bytes_a_weight / 1e9, rate);
  state.counters["GMAC/s"] = benchmark::Counter(done * count / 1e9, rate);
  state.counters["of_read"] = benchmark::Counter(done * format.bytes_a_weight / read, rate);
}

void add_benchmarks(const DotKernels& kernels, const Format& format, int threads) {
  constexpr const char* names[] = {"float", "bf16", "int8", "fp8"};  // in the order of InputValues
  for (const InputValues values : {InputValues::bf16, InputValues::any_float, InputValues::int8}) {
    if (values == InputValues::int8 && format.bytes_a_weight == 2) continue;
    for (const WeightLines lines :
         {WeightLines::led, WeightLines::each, WeightLines::each_near, WeightLines::each_late}) {
      for (const int count : {1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 64, 128}) {
        if (values == InputValues::any_float && count != 1 && count != 64) continue;
        std::string name;
        for (const std::string_view part :
             {std::string_view(format.name), kernels.name,
              std::string_view(names[static_cast<std::size_t>(values)]), name_of(lines)})
          name.append(part).append("/");
        name += "inputs:" + std::to_string(count) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&kernels, &format, values, lines, count, threads](benchmark::State& state) {
              multiply(state, kernels, format, values, lines, count, threads);
            })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

void add_benchmarks() {
  for (const int threads : {1, 2}) {
    benchmark::RegisterBenchmark(("read/threads:" + std::to_string(threads)).c_str(),
                                 [=](benchmark::State& state) {
                                   for (auto _ : state) benchmark::DoNotOptimize(read_speed(threads));
                                   state.counters["GB/s"] = read_speed(threads) / 1e9;
                                 });
    for (const Format& format : formats) {
      for (const DotKernels& kernels : dot_kernels()) {
        if (kernels.supported() && kernels.name != "scalar") add_benchmarks(kernels, format, threads);
      }
    }
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  nibble::add_benchmarks();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
