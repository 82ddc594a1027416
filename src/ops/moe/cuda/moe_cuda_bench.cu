// How fast the expert layer of gpt-oss runs: a CUDA graph of 36 layers with weights of their own, so that the
// second-level cache holds none of the next one's; random codes, random inputs, random distinct experts.
//
//   moe_cuda_bench [--experts 128,32] [--tokens 1,2,4,8,...] [--json FILE]
//
// Prints a line for each: microseconds a layer (median of the replays), distinct experts, share of 4,650
// GB/s.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/moe/cuda/moe_cuda.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

constexpr int layers = 36, hidden = 2880, intermediate = 2880, top_k = 4;
constexpr double read_peak = 4650e9;
constexpr int warm_up = 5, replays = 25;

__device__ std::uint32_t mixed(std::uint64_t i, std::uint32_t seed) {
  std::uint32_t z = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(i >> 32) ^ seed;
  z = (z ^ z >> 16) * 0x85ebca6bu;
  z = (z ^ z >> 13) * 0xc2b2ae35u;
  return z ^ z >> 16;
}

// Granules of random codes; scales 2^-8 .. 2^-6, stored as exponent fields.
__global__ void fill_granules(std::uint32_t* words, GranuleShape shape, std::size_t granules,
                              std::uint32_t seed) {
  const int words_a_granule = shape.granule_bytes() / 4;
  for (std::size_t granule = blockIdx.x; granule < granules; granule += gridDim.x) {
    for (int block = 0; block < shape.blocks(); ++block) {
      const GranulePlace place = granule_place(shape, block);
      const std::size_t base = granule * words_a_granule;
      words[base + place.codes / 4 + threadIdx.x] = mixed(base + place.codes / 4 + threadIdx.x, seed);
      if (threadIdx.x < granule_scale_bytes / 4) {
        const std::uint32_t bits = mixed(base + place.scales / 4 + threadIdx.x, seed + 1);
        words[base + place.scales / 4 + threadIdx.x] =
            0x01010101u * (119 + 126) + (bits & 0x01010101u) + (bits >> 8 & 0x01010101u);
      }
    }
  }
}

template <class T>
DeviceBuffer filled(std::size_t count, T (*value)(std::mt19937&), std::mt19937& random) {
  std::vector<T> host(count);
  for (T& element : host) element = value(random);
  Result<DeviceBuffer> buffer = DeviceBuffer::copy_of(std::span<const T>(host));
  NIBBLE_CHECK(buffer.ok());
  return std::move(buffer).value();
}

Bf16 normal(std::mt19937& random) { return Bf16::from_float(std::normal_distribution<float>()(random)); }
Bf16 small(std::mt19937& random) {
  return Bf16::from_float(0.02f * std::normal_distribution<float>()(random));
}
float fraction(std::mt19937& random) { return std::uniform_real_distribution<float>(0.1f, 0.4f)(random); }

struct Bench {
  int experts;
  GranuleShape up{2 * intermediate, hidden}, down{hidden, intermediate};
  DeviceBuffer weights, up_bias, down_bias;

  explicit Bench(int experts_, std::mt19937& random) : experts(experts_) {
    const std::size_t layer_bytes = static_cast<std::size_t>(experts) * (up.bytes() + down.bytes());
    Result<DeviceBuffer> all = DeviceBuffer::allocate(layer_bytes * layers);
    NIBBLE_CHECK(all.ok(), all.ok() ? "" : all.status().message());
    weights = std::move(all).value();
    for (int layer = 0; layer < layers; ++layer) {
      const std::uint32_t seed = static_cast<std::uint32_t>(layer) * 16;
      std::uint8_t* at = weights.as<std::uint8_t>() + layer_bytes * static_cast<std::size_t>(layer);
      fill_granules<<<2048, 128>>>(reinterpret_cast<std::uint32_t*>(at), up,
                                   static_cast<std::size_t>(experts) * up.granules(), seed);
      fill_granules<<<2048, 128>>>(
          reinterpret_cast<std::uint32_t*>(at + static_cast<std::size_t>(experts) * up.bytes()), down,
          static_cast<std::size_t>(experts) * down.granules(), seed + 4);
    }
    cuda_check(cudaGetLastError());
    up_bias = filled(static_cast<std::size_t>(experts) * up.rows, small, random);
    down_bias = filled(static_cast<std::size_t>(experts) * down.rows, small, random);
    cuda_check(cudaDeviceSynchronize());
  }

  MoeCudaWeights layer(int index) {
    const std::size_t up_bytes = static_cast<std::size_t>(experts) * up.bytes();
    std::uint8_t* at =
        weights.as<std::uint8_t>() +
        (up_bytes + static_cast<std::size_t>(experts) * down.bytes()) * static_cast<std::size_t>(index);
    return {.gate_up = {at, experts, up},
            .down = {at + up_bytes, experts, down},
            .gate_up_bias = up_bias.as<Bf16>(),
            .down_bias = down_bias.as<Bf16>()};
  }

  // One line of the table, also as JSON.
  std::string run(int tokens, std::mt19937& random) {
    std::vector<std::int32_t> ids, all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    double distinct = 0;
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<bool> used(static_cast<std::size_t>(experts));
      for (int token = 0; token < tokens; ++token) {
        for (int k = 0; k < top_k; ++k) {
          std::swap(all[static_cast<std::size_t>(k)],
                    all[static_cast<std::size_t>(k) + random() % static_cast<unsigned>(experts - k)]);
          ids.push_back(all[static_cast<std::size_t>(k)]);
          used[static_cast<std::size_t>(all[static_cast<std::size_t>(k)])] = true;
        }
      }
      distinct += static_cast<double>(std::count(used.begin(), used.end(), true)) / layers;
    }
    const std::size_t rows = static_cast<std::size_t>(tokens),
                      slots = static_cast<std::size_t>(moe_cuda_slots(tokens, top_k));
    const auto zeroed = [](std::size_t bytes) {
      Result<DeviceBuffer> buffer = DeviceBuffer::allocate(bytes);
      NIBBLE_CHECK(buffer.ok());
      buffer->fill(0);
      return std::move(buffer).value();
    };
    DeviceBuffer x = filled(rows * hidden * layers, normal, random),
                 route_weights = filled(rows * top_k, fraction, random);
    Result<DeviceBuffer> routed = DeviceBuffer::copy_of(std::span<const std::int32_t>(ids));
    NIBBLE_CHECK(routed.ok());
    DeviceBuffer activations = zeroed(slots * static_cast<std::size_t>(down.padded_cols()) * 2),
                 products = zeroed(slots * hidden * 4);
    DeviceBuffer arrived = zeroed(4), out = zeroed(rows * hidden * 4);

    cudaStream_t stream;
    cuda_check(cudaStreamCreate(&stream));
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int index = 0; index < layers; ++index) {
      const std::size_t at = static_cast<std::size_t>(index) * rows;
      const Status status = moe_mxfp4_cuda(
          layer(index),
          {.x = x.as<Bf16>() + at * hidden,
           .x_stride = hidden,
           .tokens = tokens,
           .top_k = top_k,
           .expert_ids = routed->as<std::int32_t>() + at * top_k,
           .expert_weights = route_weights.as<float>(),
           .out = out.as<float>(),
           .workspace = {activations.as<Bf16>(), products.as<float>(), arrived.as<std::uint32_t>()}},
          stream);
      NIBBLE_CHECK(status.ok(), status.message());
    }
    cudaGraph_t graph;
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    cuda_check(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    cuda_check(cudaEventCreate(&begin));
    cuda_check(cudaEventCreate(&end));
    std::vector<double> times;
    for (int replay = 0; replay < warm_up + replays; ++replay) {
      cuda_check(cudaEventRecord(begin, stream));
      cuda_check(cudaGraphLaunch(exec, stream));
      cuda_check(cudaEventRecord(end, stream));
      cuda_check(cudaEventSynchronize(end));
      float milliseconds = 0;
      cuda_check(cudaEventElapsedTime(&milliseconds, begin, end));
      if (replay >= warm_up) times.push_back(milliseconds * 1e3 / layers);
    }
    cuda_check(cudaGraphExecDestroy(exec));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaEventDestroy(begin));
    cuda_check(cudaEventDestroy(end));
    cuda_check(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    const double bytes = distinct * static_cast<double>(up.bytes() + down.bytes());
    const double share = bytes / (median * 1e-6) / read_peak;
    std::printf(
        "%4d experts %5d tokens %9.2f us a layer (%.2f .. %.2f)  %6.1f distinct  %5.1f %% of 4,650 GB/s\n",
        experts, tokens, median, times.front(), times.back(), distinct, 100 * share);
    std::fflush(stdout);
    char line[256];
    std::snprintf(line, sizeof line,
                  "{\"experts\": %d, \"tokens\": %d, \"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f, "
                  "\"distinct\": %.2f, "
                  "\"share_of_read_peak\": %.4f}",
                  experts, tokens, median, times.front(), times.back(), distinct, share);
    return line;
  }
};

std::vector<int> numbers(const char* text) {
  std::vector<int> found;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    found.push_back(static_cast<int>(std::strtol(text, &end, 10)));
    if (end == text) break;
  }
  return found;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  std::vector<int> experts = {128, 32}, tokens = {1, 2, 4, 8, 16, 32, 64, 128};
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--experts") experts = nibble::numbers(argv[i + 1]);
    if (option == "--tokens") tokens = nibble::numbers(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
  }
  std::mt19937 random(1);
  std::string lines;
  for (const int count : experts) {
    nibble::Bench bench(count, random);
    for (const int batch : tokens) lines += (lines.empty() ? "" : ",\n ") + bench.run(batch, random);
  }
  if (json != nullptr) {
    if (FILE* file = std::fopen(json, "w")) {
      std::fprintf(file, "[%s]\n", lines.c_str());
      std::fclose(file);
    }
  }
  return 0;
}
