// Threads stride through both places; one that finds any adds its count, to an integer, whose sum no order
// changes. Bytes: 8 a logit.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/sample/cuda/unlike_logits_cuda.h"

namespace nibble {
namespace {

constexpr int compare_threads = 256, blocks_a_processor = 4;

__global__ void __launch_bounds__(compare_threads)
    count_unlike_logits(const float* a, const float* b, std::size_t count, std::uint32_t* unlike) {
  int own = 0;
  const std::size_t stride = std::size_t{gridDim.x} * compare_threads;
  for (std::size_t i = std::size_t{blockIdx.x} * compare_threads + threadIdx.x; i < count; i += stride)
    own += __float_as_uint(a[i]) != __float_as_uint(b[i]) ? 1 : 0;
  if (own > 0) atomicAdd(unlike, static_cast<std::uint32_t>(own));
}

}  // namespace

void count_unlike_logits_cuda(const float* a, const float* b, std::size_t count, std::uint32_t* unlike,
                              cudaStream_t stream) {
  const std::size_t most = static_cast<std::size_t>(processors_of_device()) * blocks_a_processor;
  const std::size_t blocks = std::min((count + compare_threads - 1) / compare_threads, most);
  if (blocks == 0) return;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)), .threads = compare_threads, .stream = stream},
                count_unlike_logits, a, b, count, unlike);
}

}  // namespace nibble
