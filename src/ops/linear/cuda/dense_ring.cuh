// What the kernels for few and for some tokens share: a ring of stages in shared memory, and a stage's
// products.
#pragma once

#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/warpgroup.cuh"

namespace nibble {

inline constexpr int stage_blocks = 2;  // k64 blocks of a tile in a stage: copies of 16 KB
inline constexpr int stage_weight_bytes = stage_blocks * dense_block_bytes;

// A place in a ring.
struct RingTurn {
  int stage = 0;
  unsigned round = 0;

  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, ++round;
  }
  __device__ void wait_empty(std::uint64_t* empty, std::uint32_t* stuck) const {
    if (round > 0) ptx::await_room(&empty[stage], (round - 1) & 1, stuck, Stuck::dense_ring);
  }
};

// Activations as operands: groups of 8 tokens that lie so far apart.
template <int group_bytes>
struct TokenGroups {
  static constexpr int step_bytes = token_step_bytes;
  static __device__ std::uint64_t operand(const void* step) { return ptx::wgmma_operand<group_bytes>(step); }
};
// One row as it is.
struct OneRow {
  static constexpr int step_bytes = 16 * 2;
  static __device__ std::uint64_t operand(const void* step) { return ptx::wgmma_row_operand(step); }
};

// The products of so many k64 blocks, as a group that is under way afterwards. Without a branch or a turn
// inside: ptxas would close the group once more behind it, and who waits for all groups but the last one
// would wait for these.
template <class Tokens, int blocks, int count>
__device__ __forceinline__ void multiply_blocks(float (&sums)[count], std::uint64_t weights,
                                                std::uint64_t tokens) {
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4 * blocks; ++step) {
    ptx::wgmma_bf16(sums, ptx::wgmma_operand_at(weights, static_cast<unsigned>(step * dense_step_bytes)),
                    ptx::wgmma_operand_at(tokens, static_cast<unsigned>(step * Tokens::step_bytes)), true);
  }
  ptx::wgmma_commit();
}

// A stage's products: of the k64 blocks that are left of a chunk as many as it has. They are under way
// afterwards, and those of the stage before are done.
template <class Tokens, int count>
__device__ __forceinline__ void multiply_stage(float (&sums)[count], const std::uint8_t* weights,
                                               const std::uint8_t* tokens, int left) {
  static_assert(stage_blocks == 2);
  const std::uint64_t first = ptx::wgmma_operand<256>(weights), with = Tokens::operand(tokens);
  if (left >= stage_blocks) {
    multiply_blocks<Tokens, stage_blocks>(sums, first, with);
  } else {
    multiply_blocks<Tokens, 1>(sums, first, with);
  }
  ptx::wgmma_wait_but_last();
}

// By the multiplying warpgroup, whose products of a stage are done: it may be filled again. -1: none.
__device__ __forceinline__ void leave_stage(std::uint64_t* empty, int stage) {
  // A lane speaks for its warp, whose lanes wait together.
  if (threadIdx.x % 32 == 0 && stage >= 0) ptx::mbarrier_arrive(&empty[stage]);
  __syncwarp();
}

}  // namespace nibble
