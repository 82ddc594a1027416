// What the kernels for few and for some tokens share: a ring of stages in shared memory, and a stage's
// products.
#pragma once

#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/warpgroup.cuh"

namespace nibble {

inline constexpr int stage_blocks = 2;  // k64 blocks of a tile in a stage: copies of 16 KB
inline constexpr int stage_weight_bytes = stage_blocks * dense_block_bytes;

// A place in a ring.
template <int stages>
struct RingTurn {
  int stage = 0;
  unsigned round = 0;

  __device__ void next() {
    if (++stage == stages) stage = 0, ++round;
  }
  __device__ void wait_empty(std::uint64_t* empty) const {
    if (round > 0) ptx::mbarrier_wait(&empty[stage], (round - 1) & 1);
  }
};

// A stage's products: of the k64 blocks that are left of a chunk as many as it has, with groups of tokens
// that lie so far apart. They are under way afterwards, and those of the stage before are done.
template <int group_bytes, int count>
__device__ __forceinline__ void multiply_stage(float (&sums)[count], const std::uint8_t* weights,
                                               const std::uint8_t* tokens, int left) {
#pragma unroll 1
  for (int block = 0; block < min(left, stage_blocks); ++block) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_bf16(sums, ptx::wgmma_operand<256>(weights + step * dense_step_bytes),
                      ptx::wgmma_operand<group_bytes>(tokens + step * token_step_bytes), true);
    }
    weights += dense_block_bytes;
    tokens += token_block_bytes;
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait_but_last();
}

// By the multiplying warpgroup, whose products of a stage are done: it may be filled again. -1: none.
__device__ __forceinline__ void leave_stage(std::uint64_t* empty, int stage) {
  // A lane speaks for its warp, whose lanes wait together.
  if (threadIdx.x % 32 == 0 && stage >= 0) ptx::mbarrier_arrive(&empty[stage]);
  __syncwarp();
}

}  // namespace nibble
