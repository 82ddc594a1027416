// What benchmarks on a GPU share: random buffers, and the time of a graph of kernels.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/bf16.h"
#include "tensor/device_buffer.h"

namespace nibble::bench {

inline Bf16 normal(std::mt19937& random) {
  return Bf16::from_float(std::normal_distribution<float>()(random));
}
inline Bf16 small(std::mt19937& random) {
  return Bf16::from_float(0.02f * std::normal_distribution<float>()(random));
}

inline DeviceBuffer room(std::size_t bytes) {
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(bytes);
  NIBBLE_CHECK(buffer.ok(), buffer.ok() ? "" : buffer.status().message());
  return std::move(buffer).value();
}

inline DeviceBuffer zeroed(std::size_t bytes) {
  DeviceBuffer buffer = room(bytes);
  buffer.fill(0);
  return buffer;
}

template <class T>
DeviceBuffer copied(const std::vector<T>& host) {
  Result<DeviceBuffer> buffer = DeviceBuffer::copy_of(std::span<const T>(host));
  NIBBLE_CHECK(buffer.ok(), buffer.ok() ? "" : buffer.status().message());
  return std::move(buffer).value();
}

template <class T>
DeviceBuffer filled(std::size_t count, T (*value)(std::mt19937&), std::mt19937& random) {
  std::vector<T> host(count);
  for (T& element : host) element = value(random);
  return copied(host);
}

__device__ inline std::uint32_t mixed(std::uint64_t i, std::uint32_t seed) {
  std::uint32_t z = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(i >> 32) ^ seed;
  z = (z ^ z >> 16) * 0x85ebca6bu;
  z = (z ^ z >> 13) * 0xc2b2ae35u;
  return z ^ z >> 16;
}

// Two bfloat16 a word: signs and mantissas random, magnitudes from 2^-8 to 2^-4.
static __global__ void fill_bf16(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = (mixed(i, seed) & 0x81ff81ffu) + 0x3b803b80u;
}
inline DeviceBuffer random_weights(std::size_t bytes, std::uint32_t seed) {
  DeviceBuffer buffer = room(bytes);
  fill_bf16<<<2048, 256>>>(buffer.as<std::uint32_t>(), bytes / 4, seed);
  cuda_check(cudaGetLastError());
  cuda_check(cudaDeviceSynchronize());
  return buffer;
}

inline void require(const Status& status) { NIBBLE_CHECK(status.ok(), status.message()); }

struct Times {
  double median, least, most;  // microseconds a part
};

// Queues once into a graph of `parts` equal parts, and replays it.
inline Times time_graph(int parts, int replays, const std::function<void(cudaStream_t)>& queue) {
  constexpr int warm_up = 3;
  cudaStream_t stream;
  cuda_check(cudaStreamCreate(&stream));
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  queue(stream);
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
    if (replay >= warm_up) times.push_back(milliseconds * 1e3 / parts);
  }
  cuda_check(cudaGraphExecDestroy(exec));
  cuda_check(cudaGraphDestroy(graph));
  cuda_check(cudaEventDestroy(begin));
  cuda_check(cudaEventDestroy(end));
  cuda_check(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

inline std::vector<int> numbers(const char* text) {
  std::vector<int> found;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    found.push_back(static_cast<int>(std::strtol(text, &end, 10)));
    if (end == text) break;
  }
  return found;
}

// The lines of a benchmark as a JSON list; nothing where no file is named.
inline void write_json(const char* file_name, const std::vector<std::string>& lines) {
  if (file_name == nullptr) return;
  std::FILE* file = std::fopen(file_name, "w");
  if (file == nullptr) return;
  std::fputs("[", file);
  for (std::size_t i = 0; i < lines.size(); ++i)
    std::fprintf(file, "%s%s", i == 0 ? "" : ",\n ", lines[i].c_str());
  std::fputs("]\n", file);
  std::fclose(file);
}

// Whether a machine can run the benchmark at all; says why not.
inline bool has_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return true;
  std::fputs("skipped: no usable GPU or driver\n", stderr);
  return false;
}

}  // namespace nibble::bench
