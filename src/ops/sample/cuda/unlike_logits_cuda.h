// Whether two places hold the same logits, bit by bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nibble {

// Queues the counting of those of `count` logits whose bits differ between `a` and `b`, which is added to
// *unlike. All pointers are to device memory.
void count_unlike_logits_cuda(const float* a, const float* b, std::size_t count, std::uint32_t* unlike,
                              cudaStream_t stream);

}  // namespace nibble
