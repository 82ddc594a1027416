// Conversions of a matrix larger than the caches, on all CPUs, beside what memory gives in the same run:
// `read` sums 64-bit words, `copy` is memcpy, which reads and writes. Bytes are those read and those written.
//
// The matrix is worked on in eighths. A time is eight times that of the fastest eighth in many rounds: other
// work on the machine costs some of them, and spares some.
//
// A conversion is held to what its own mix of reading and writing allows: as many bytes as it reads and
// writes alike at the rate of the copy, what it reads beyond at the rate of reading, what it writes beyond at
// the copy's again. `of_memory` is the share of that.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "formats/codec_kernels.h"
#include "formats/fp8_block.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

constexpr std::size_t values = std::size_t{1} << 26;
constexpr int shares = 256;
constexpr std::size_t share_values = values / shares;  // whole blocks, and bands of 128 rows of 2048

struct Room {
  ThreadPool threads{0};
  std::vector<float> wide = std::vector<float>(values);
  std::vector<Bf16> narrow = std::vector<Bf16>(values);
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(values);
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(values / 16);
  std::vector<float> tile_scales = std::vector<float>(values / fp8_tile / fp8_tile);
  double read_rate = 0, copy_rate = 0;  // bytes a second
};

// Seconds of the whole matrix, by its fastest eighth; work(share) for each of the shares.
template <class Work>
double best_seconds(Room& room, int rounds, const Work& work) {
  constexpr int eighth = shares / 8;
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    for (int first = 0; first < shares; first += eighth) {
      const auto start = std::chrono::steady_clock::now();
      room.threads.parallel_for(eighth, [&](int begin, int end) {
        for (int share = begin; share < end; ++share) work(static_cast<std::size_t>(first + share));
      });
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  return 8 * best;
}

void measure_memory(Room& room) {
  std::atomic<std::uint64_t> total = 0;
  const auto read = [&](std::size_t share) {
    const std::size_t bytes = share_values * sizeof(float);
    const char* from = reinterpret_cast<const char*>(room.wide.data()) + share * bytes;
    std::uint64_t sums[16] = {};
    for (std::size_t at = 0; at < bytes; at += sizeof sums) {
      for (std::size_t lane = 0; lane < 16; ++lane) {
        std::uint64_t word;
        std::memcpy(&word, from + at + lane * 8, 8);
        sums[lane] += word;
      }
    }
    for (const std::uint64_t sum : sums) total += sum;
  };
  room.read_rate = values * sizeof(float) / best_seconds(room, 150, read);
  benchmark::DoNotOptimize(total.load());
  // Half of the values onto the other half.
  const auto copy = [&](std::size_t share) {
    constexpr std::size_t count = share_values / 2;
    std::memcpy(room.wide.data() + values / 2 + share * count, room.wide.data() + share * count,
                count * sizeof(float));
  };
  room.copy_rate = values * sizeof(float) / best_seconds(room, 150, copy);
}

Room& room() {
  static Room* made = [] {
    auto* fresh = new Room;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> some(1 << 20);
    for (float& value : some) value = normal(random);
    for (std::size_t i = 0; i < values; ++i) {
      fresh->wide[i] = some[(i * 7 + i / some.size()) % some.size()];
      fresh->narrow[i] = Bf16::from_float(fresh->wide[i]);
    }
    measure_memory(*fresh);
    return fresh;
  }();
  return *made;
}

// Eight rounds an iteration.
template <class Work>
void measure(benchmark::State& state, double read_bytes, double written_bytes, const Work& work) {
  Room& all = room();
  for (auto _ : state) state.SetIterationTime(best_seconds(all, 8, work));
  const double bytes = values * (read_bytes + written_bytes);
  const double copied = 2 * std::min(read_bytes, written_bytes);
  // What is written beyond what is read costs as the copy's writing does.
  const double rest = read_bytes + written_bytes - copied;
  const double bound =
      values * (copied / all.copy_rate + rest / (written_bytes > read_bytes ? all.copy_rate : all.read_rate));
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["of_memory"] = Counter(bound, Counter::kIsIterationInvariantRate);
  state.counters["read_GB/s"] = all.read_rate / 1e9;
  state.counters["copy_GB/s"] = all.copy_rate / 1e9;
}

template <class T>
const T* source(Room& all) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return all.narrow.data();
  } else {
    return all.wide.data();
  }
}

template <class T>
void encode(benchmark::State& state, const EncodeKernels<T>& kernels, int format) {
  Room& all = room();
  const T* from = source<T>(all);
  constexpr double width = sizeof(T);
  if (format == 0) {
    measure(state, width, 17.0 / 32, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.mxfp4(from + at, share_values / 32, Mxfp4Scale::round_up, all.codes.data() + at / 2,
                    all.scales.data() + at / 32);
    });
  } else if (format == 1) {
    measure(state, width, 9.0 / 16, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.nvfp4(from + at, share_values / 16, 2e4f, all.codes.data() + at / 2,
                    all.scales.data() + at / 16);
    });
  } else if (format == 2) {
    measure(state, width, 33.0 / 32, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.mxfp8(from + at, share_values / 32, all.codes.data() + at, all.scales.data() + at / 32);
    });
  } else {
    // With the best kernels alone. A band is read twice, the second time from a cache.
    measure(state, width, 1, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      fp8_block_encode({fp8_tile, share_values / fp8_tile}, from + at, all.codes.data() + at,
                       all.tile_scales.data() + at / fp8_tile / fp8_tile);
    });
  }
}

void decode(benchmark::State& state, const CodecKernels& kernels, int format) {
  Room& all = room();
  const std::uint8_t* codes = all.codes.data();
  std::vector<std::uint8_t> scales(values / 16, 0x38);
  if (format == 0) {
    measure(state, 17.0 / 32, 4, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.mxfp4_decode(codes + at / 2, scales.data() + at / 32, share_values / 32, all.wide.data() + at);
    });
  } else if (format == 1) {
    measure(state, 9.0 / 16, 4, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.nvfp4_decode(codes + at / 2, scales.data() + at / 16, share_values / 16, 2e4f,
                           all.wide.data() + at);
    });
  } else if (format == 2) {
    measure(state, 33.0 / 32, 4, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.mxfp8_decode(codes + at, scales.data() + at / 32, share_values / 32, all.wide.data() + at);
    });
  } else {
    measure(state, 1, 4, [&](std::size_t share) {
      const std::size_t at = share * share_values;
      kernels.e4m3_decode(codes + at, share_values, 0.01f, all.wide.data() + at);
    });
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  const char* const formats[] = {"mxfp4", "nvfp4", "mxfp8", "fp8_block"};
  for (const CodecKernels& kernels : codec_kernels()) {
    if (!kernels.supported()) continue;
    const bool best = &kernels == &best_codec_kernels();
    for (int format = 0; format < 4; ++format) {
      const std::string name = "/" + std::string(formats[format]) + "/" + std::string(kernels.name);
      const auto add = [](const std::string& of, auto body) {
        benchmark::RegisterBenchmark(of.c_str(), body)->UseManualTime()->Unit(benchmark::kMillisecond);
      };
      if (format < 3 || best) {
        add("encode_bf16" + name,
            [&kernels, format](benchmark::State& state) { encode(state, kernels.bf16, format); });
        add("encode_f32" + name,
            [&kernels, format](benchmark::State& state) { encode(state, kernels.f32, format); });
      }
      add("decode_f32" + name,
          [&kernels, format](benchmark::State& state) { decode(state, kernels, format); });
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
