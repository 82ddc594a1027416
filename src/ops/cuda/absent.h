// Sums that say themselves that they have come: a place in memory holds bits that no sum has until one is
// stored, whoever takes it makes them absent again, and so nobody counts and nothing has to be ordered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/cuda_check.h"

namespace nibble {

// A NaN other than the one that arithmetic gives; every byte of it is the same.
inline constexpr std::uint32_t absent_bits = 0xffffffffu;

// Queues what such places, `count` of them, hold before the first launch.
inline void make_absent(float* sums, std::size_t count, cudaStream_t stream) {
  cuda_check(cudaMemsetAsync(sums, absent_bits & 0xff, count * sizeof(float), stream));
}

}  // namespace nibble
