// How fast a kernel that does nothing else reads this GPU's memory: what benchmarks' shares are of. GPUs of
// one name differ by a few hundredths, those of two names by half, so it is measured where it is used.
#pragma once

#include "ops/cuda/bench_util.cuh"

namespace nibble::bench {

// Each thread reads four times 16 bytes, a quarter of the memory apart; as many blocks as that takes go over
// it once, and the others once more.
constexpr int read_loads = 4, read_threads = 256;
static __global__ void read_again(const uint4* from, unsigned blocks_a_time, std::uint32_t* unlikely) {
  const std::size_t quarter = std::size_t{blocks_a_time} * read_threads;
  const std::size_t at = std::size_t{blockIdx.x % blocks_a_time} * read_threads + threadIdx.x;
  uint4 found[read_loads];
#pragma unroll
  for (int i = 0; i < read_loads; ++i) found[i] = __ldcs(from + at + static_cast<std::size_t>(i) * quarter);
  std::uint32_t mixed_bits = 0;
#pragma unroll
  for (const uint4& words : found) mixed_bits ^= words.x ^ words.y ^ words.z ^ words.w;
  // Once in 2^32, harmlessly: without a use there would be no loads.
  if (mixed_bits == 0x7fc1a5b3u) *unlikely = mixed_bits;
}

struct ReadPeak {
  double rate;  // bytes a second
  // Kept: where gigabytes were given back, kernels of few bytes took a tenth longer for the next half second.
  DeviceBuffer memory;
};

// The best of 20 launches that read 4 GiB of random bits, of which caches hold a hundredth, four times.
inline ReadPeak measure_read_peak() {
  constexpr std::size_t bytes = std::size_t{4} << 30;
  constexpr unsigned times_over = 4, blocks_a_time = bytes / sizeof(uint4) / read_loads / read_threads;
  DeviceBuffer memory = random_weights(bytes, 1), unlikely = zeroed(4);
  const Times times = time_graph(1, 20, [&](cudaStream_t stream) {
    read_again<<<times_over * blocks_a_time, read_threads, 0, stream>>>(memory.as<uint4>(), blocks_a_time,
                                                                        unlikely.as<std::uint32_t>());
    cuda_check(cudaGetLastError());
  });
  const double rate = static_cast<double>(bytes) * times_over / (times.least * 1e-6);
  std::printf("memory: %.0f GB/s at most, by a kernel that only reads\n", rate * 1e-9);
  return {rate, std::move(memory)};
}

}  // namespace nibble::bench
