#include <algorithm>

#include "formats/bf16.h"
#include "models/cuda/random_numbers.h"
#include "ops/cuda/launch.cuh"

namespace nibble {
namespace {

constexpr int random_threads = 256;

// One of 2^64 numbers for each place of a tensor (the finaliser of MurmurHash3).
__device__ __forceinline__ std::uint64_t mixed(std::uint64_t stream, std::uint64_t place) {
  std::uint64_t bits = stream ^ (place * 0x9e3779b97f4a7c15ULL);
  bits = (bits ^ bits >> 33) * 0xff51afd7ed558ccdULL;
  bits = (bits ^ bits >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return bits ^ bits >> 33;
}

// center + deviation x a number of mean 0 and variance 1, from the sum of four uniform ones.
__global__ void __launch_bounds__(random_threads)
    random_bf16(std::uint64_t stream, std::size_t first, std::size_t count, float center, float deviation,
                std::uint16_t* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step) {
    const std::uint64_t bits = mixed(stream, first + i);
    const int sum = static_cast<int>(bits & 0xffff) + static_cast<int>(bits >> 16 & 0xffff) +
                    static_cast<int>(bits >> 32 & 0xffff) + static_cast<int>(bits >> 48);
    const float unit = static_cast<float>(sum - 131070) * (1.7320508f / 65536.0f);
    to[i] = Bf16::from_float(center + deviation * unit).bits;
  }
}

__global__ void __launch_bounds__(random_threads)
    random_bytes(std::uint64_t stream, std::size_t first, std::size_t count, std::uint8_t* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step)
    to[i] = static_cast<std::uint8_t>(mixed(stream, first + i));
}

__global__ void __launch_bounds__(random_threads)
    random_scales(std::uint64_t stream, std::size_t first, std::size_t count, int exponent,
                  std::uint8_t* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step) {
    const int kind = static_cast<int>(mixed(stream, first + i) & 3);
    to[i] = static_cast<std::uint8_t>(127 + exponent + (kind == 3 ? 1 : kind == 2 ? -1 : 0));
  }
}

__global__ void __launch_bounds__(random_threads)
    random_e4m3_scales(std::uint64_t stream, std::size_t first, std::size_t count, int exponent,
                       std::uint8_t* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step)
    to[i] = static_cast<std::uint8_t>((exponent + 7) * 8 + static_cast<int>(mixed(stream, first + i) & 7));
}

__global__ void __launch_bounds__(random_threads)
    random_e4m3(std::uint64_t stream, std::size_t first, std::size_t count, std::uint8_t* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step) {
    const int code = static_cast<int>(mixed(stream, first + i) & 0xff);
    to[i] = static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? code - 1 : code);
  }
}

__global__ void __launch_bounds__(random_threads)
    random_floats(std::uint64_t stream, std::size_t first, std::size_t count, float center, float* to) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * random_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * random_threads + threadIdx.x; i < count;
       i += step)
    to[i] = center * (0.5f + static_cast<float>(mixed(stream, first + i) & 0xffff) * (1.0f / 65536.0f));
}

Launch launch_of(const RandomPlaces& places, cudaStream_t stream) {
  const std::size_t blocks = (places.count + random_threads - 1) / random_threads;
  return {.blocks = dim3(static_cast<unsigned>(std::clamp<std::size_t>(blocks, 1, 4096))),
          .threads = random_threads,
          .stream = stream};
}

}  // namespace

void random_bf16_cuda(const RandomPlaces& places, float center, float deviation, std::uint16_t* to,
                      cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_bf16, places.stream, places.first, places.count, center,
                deviation, to);
}
void random_bytes_cuda(const RandomPlaces& places, std::uint8_t* to, cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_bytes, places.stream, places.first, places.count, to);
}
void random_scales_cuda(const RandomPlaces& places, int exponent, std::uint8_t* to, cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_scales, places.stream, places.first, places.count, exponent,
                to);
}
void random_e4m3_scales_cuda(const RandomPlaces& places, int exponent, std::uint8_t* to,
                             cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_e4m3_scales, places.stream, places.first, places.count,
                exponent, to);
}
void random_e4m3_cuda(const RandomPlaces& places, std::uint8_t* to, cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_e4m3, places.stream, places.first, places.count, to);
}
void random_floats_cuda(const RandomPlaces& places, float center, float* to, cudaStream_t stream) {
  launch_kernel(launch_of(places, stream), random_floats, places.stream, places.first, places.count, center,
                to);
}

}  // namespace nibble
