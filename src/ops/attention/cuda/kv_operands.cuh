// What the lanes of a warp take of keys and values in shared memory.
#pragma once

#include "ops/attention/cuda/kv_cuda.h"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

// A lane's elements of a group, 8 rows x 64 columns: of row lane / 4 the pairs 8i + 2 (lane % 4) and the next
// one, for i from 0 to 7, as mma_m16n8k16_bf16 wants them of b. What is not bfloat16 becomes it where it is
// needed, so that fewer registers hold it until then.
template <class Kv>
struct GroupOperand;

template <>
struct GroupOperand<KvBf16> {
  std::uint32_t words[8];

  __device__ __forceinline__ void load(const std::uint8_t* group, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::load_matrices(words[4 * half], words[4 * half + 1], words[4 * half + 2], words[4 * half + 3],
                         group + half * 512 + lane * 16);
    }
  }
  // The same from global memory, past the first-level cache; on its way when this returns.
  __device__ __forceinline__ void load_from_global(const std::uint8_t* group, int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      words[i] = __ldcg(reinterpret_cast<const std::uint32_t*>(group + i * 128) + lane);
  }
  // Of every load a word (ptx::await_loads).
  __device__ __forceinline__ std::uint32_t of_loads() const { return words[0] ^ words[4]; }
  __device__ __forceinline__ std::uint32_t pair(int i) const { return words[i]; }
  // Makes element i of the lane's sixteen zero.
  __device__ __forceinline__ void clear(int i) { words[i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u; }
};

template <>
struct GroupOperand<KvE4m3> {
  std::uint32_t words[4];

  __device__ __forceinline__ void load(const std::uint8_t* group, int lane) {
    take(*reinterpret_cast<const uint4*>(group + lane * 16));
  }
  __device__ __forceinline__ void load_from_global(const std::uint8_t* group, int lane) {
    take(__ldcg(reinterpret_cast<const uint4*>(group + lane * 16)));
  }
  __device__ __forceinline__ void take(const uint4& four) {
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  }
  __device__ __forceinline__ std::uint32_t of_loads() const { return words[0]; }
  __device__ __forceinline__ std::uint32_t pair(int i) const {
    return ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
  }
  __device__ __forceinline__ void clear(int i) { words[i / 4] &= ~(0xffu << (8 * (i % 4))); }
};

}  // namespace nibble
