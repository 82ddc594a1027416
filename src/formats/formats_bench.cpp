// Conversions of a matrix larger than the caches, on all CPUs, beside what memory gives in the same moment:
// `read` sums 64-bit words, `copy` is memcpy, which reads and writes. Bytes are those read and those written,
// each counted once, whatever a cache fetches besides.
//
// The matrix is worked on in eighths. A round times reading, copying and the conversion, each on an eighth
// that none of the others touched lately, so that what else the machine does in that moment falls on all
// three; figures are medians over the rounds, of_memory the median of the rounds' shares.
//
// A conversion is held to what its own mix of reading and writing allows: as many bytes as it reads and
// writes alike at the rate of the copy, what it reads beyond at the rate of reading, what it writes beyond at
// the copy's again. `of_memory` is the share of that.
#include <benchmark/benchmark.h>

#include <algorithm>
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

// Whole lines, as the program's own buffers are.
template <class T>
class Lines {
 public:
  explicit Lines(std::size_t count) : lines_((count * sizeof(T) + 63) / 64) {}
  T* data() { return reinterpret_cast<T*>(lines_.data()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

struct Room {
  ThreadPool threads{0};
  Lines<float> wide{values};
  Lines<Bf16> narrow{values};
  Lines<std::uint8_t> codes{values};
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(values / 16);
  std::vector<float> tile_scales = std::vector<float>(values / fp8_tile / fp8_tile);
  std::size_t next_eighth = 0;
};

Room& room() {
  static Room* made = [] {
    auto* fresh = new Room;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> some(1 << 20);
    for (float& value : some) value = normal(random);
    for (std::size_t i = 0; i < values; ++i) {
      fresh->wide.data()[i] = some[(i * 7 + i / some.size()) % some.size()];
      fresh->narrow.data()[i] = Bf16::from_float(fresh->wide.data()[i]);
    }
    return fresh;
  }();
  return *made;
}

// Seconds of work(share) for the shares of one eighth; the next call takes another.
template <class Work>
double seconds_of_an_eighth(Room& room, const Work& work) {
  constexpr std::size_t eighth = shares / 8;
  const std::size_t first = room.next_eighth * eighth;
  room.next_eighth = (room.next_eighth + 3) % 8;
  const auto start = std::chrono::steady_clock::now();
  room.threads.parallel_for(static_cast<int>(eighth), [&](int begin, int end) {
    for (int share = begin; share < end; ++share) work(first + static_cast<std::size_t>(share));
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void read_share(Room& room, std::size_t share) {
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
  for (std::uint64_t& sum : sums) benchmark::DoNotOptimize(sum);
}

// Half of the values onto the other half.
void copy_share(Room& room, std::size_t share) {
  constexpr std::size_t count = share_values / 2;
  std::memcpy(room.wide.data() + values / 2 + share * count, room.wide.data() + share * count,
              count * sizeof(float));
}

double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

template <class Work>
void measure(benchmark::State& state, double read_bytes, double written_bytes, const Work& work) {
  constexpr int rounds = 40;
  constexpr double moved = values / 8.0 * sizeof(float);  // by reading an eighth or copying it
  Room& all = room();
  const double bytes = values / 8.0 * (read_bytes + written_bytes);
  const double copied = values / 8.0 * 2 * std::min(read_bytes, written_bytes);
  const double rest = bytes - copied;
  std::vector<double> rate, share, reading, copying;
  for (auto _ : state) {
    for (int round = 0; round < rounds; ++round) {
      const double read = moved / seconds_of_an_eighth(all, [&](std::size_t at) { read_share(all, at); });
      const double copy = moved / seconds_of_an_eighth(all, [&](std::size_t at) { copy_share(all, at); });
      const double seconds = seconds_of_an_eighth(all, work);
      // What is written beyond what is read costs as the copy's writing does.
      const double bound = copied / copy + rest / (written_bytes > read_bytes ? copy : read);
      reading.push_back(read / 1e9);
      copying.push_back(copy / 1e9);
      rate.push_back(bytes / seconds / 1e9);
      share.push_back(bound / seconds);
    }
  }
  state.counters["bytes_a_value"] = read_bytes + written_bytes;
  state.counters["GB/s"] = median(rate);
  state.counters["of_memory"] = median(share);
  state.counters["read_GB/s"] = median(reading);
  state.counters["copy_GB/s"] = median(copying);
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
        benchmark::RegisterBenchmark(of.c_str(), body)
            ->Iterations(1)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
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
