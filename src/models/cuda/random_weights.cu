#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "formats/bf16.h"
#include "models/cuda/random_weights.h"
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

// FNV-1a
std::uint64_t hash_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return hash;
}

struct Values {
  float center, deviation;
};
Values values_of(const ExpectedTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("norm.weight")) return {1.0f, 0.06f};
  if (name.ends_with("bias") || name.ends_with("sinks")) return {0.0f, 0.06f};
  if (name.ends_with("embed_tokens.weight")) return {0.0f, 1.0f};
  return {0.0f, 1.0f / std::sqrt(static_cast<float>(tensor.shape[tensor.shape.rank() - 1]))};
}

}  // namespace

Status RandomWeights::queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                            cudaStream_t stream) {
  const std::uint64_t numbers = hash_of(tensor.name, seed_);
  const std::size_t element = dtype_bytes(tensor.dtype), first = begin / element, elements = count / element;
  const Launch launch{.blocks = dim3(static_cast<unsigned>(std::clamp<std::size_t>(
                          (elements + random_threads - 1) / random_threads, 1, 4096))),
                      .threads = random_threads,
                      .stream = stream};
  if (elements == 0) return {};
  if (tensor.dtype == DType::bf16) {
    const Values values = values_of(tensor);
    launch_kernel(launch, random_bf16, numbers, first, elements, values.center, values.deviation,
                  static_cast<std::uint16_t*>(to));
  } else if (tensor.scales == ScaleKind::e8m0) {
    // A code's mean square is 9.2: with scales of about 1 / (3 sqrt(columns)) a sum's variance is the
    // input's.
    const float columns = 32.0f * static_cast<float>(tensor.shape[tensor.shape.rank() - 1]);
    const int exponent = static_cast<int>(std::lround(-std::log2(3.0f * std::sqrt(columns))));
    launch_kernel(launch, random_scales, numbers, first, elements, exponent, static_cast<std::uint8_t*>(to));
  } else {
    NIBBLE_CHECK(tensor.dtype == DType::u8);
    launch_kernel(launch, random_bytes, numbers, first, elements, static_cast<std::uint8_t*>(to));
  }
  return {};
}

}  // namespace nibble
