// What blocks that leave sums for each other (absent.h) do with a word.
#pragma once

#include "ops/cuda/absent.h"

namespace nibble {

__device__ __forceinline__ float absent_word() { return __uint_as_float(absent_bits); }
__device__ __forceinline__ bool is_absent(float sum) { return __float_as_uint(sum) == absent_bits; }
__device__ __forceinline__ bool is_absent(const float4& sums) {
  return is_absent(sums.x) || is_absent(sums.y) || is_absent(sums.z) || is_absent(sums.w);
}
// A sum as it may be stored.
__device__ __forceinline__ float but_absent(float sum) {
  return is_absent(sum) ? __uint_as_float(0x7fffffffu) : sum;
}

}  // namespace nibble
