// What the kernels for few tokens share: a ring of stages with weights and activations, how a block fills it
// and multiplies from it. One warp fetches weights, another activations; a warpgroup multiplies.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_units.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/warpgroup.cuh"

namespace nibble {

inline constexpr int few_threads = product_threads + 64;
inline constexpr int stage_group_bytes = stage_blocks * token_block_bytes;  // of 8 tokens
template <int columns>
constexpr int few_stage_bytes = stage_weight_bytes + columns / token_group* stage_group_bytes;
inline constexpr int few_least_stages = 3;  // of a ring
inline constexpr int few_most_stages = 11;

// On their way together before the first products. With three for o one sequence of gpt-oss-120b makes 1.3 %
// less: they hold up the queries that attention waits for.
inline constexpr int few_early_stages = 2;

// The stages of the ring. As many are taken as fit beside a block of the launch before or behind. A step of
// few rows takes as long as its weights, and those in the ring come before the activations do. Where the
// other block leaves too little, the ring has its least size and the two blocks run one after the other.
template <int columns>
int few_ring_stages(int tokens, int beside, int longest) {
  static_assert(few_least_stages * few_stage_bytes<columns> + shared_of_block <= shared_196_kb.bytes);
  const int room = share_of(tokens).bytes - beside - shared_of_norm - 2 * shared_of_block;
  return std::clamp(room / few_stage_bytes<columns>, few_least_stages, longest);
}

// What the warps of a block tell each other of the ring's stages.
struct FewBarriers {
  std::uint64_t weights[few_most_stages], tokens[few_most_stages];  // that have come
  std::uint64_t empty[few_most_stages];

  __device__ void init(int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&weights[stage], 1);
      ptx::mbarrier_init(&tokens[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_threads / 32);
    }
    ptx::fence_mbarrier_init();
  }
};

// By one lane, the weights of all stages but the first, which is on its way.
template <int columns, int chunks>
__device__ __forceinline__ RingTurn fetch_weight_stages(const std::uint8_t* weights,
                                                        const Pieces<chunks>& pieces, std::uint8_t* ring,
                                                        FewBarriers& barriers, int stages,
                                                        std::uint32_t* stuck) {
  const auto fetch = [&](const Pieces<chunks>& piece, int stage, int index) {
    if (index == 0) return;
    if (index >= few_early_stages && index < stages)
      ptx::mbarrier_wait(&barriers.weights[index - few_early_stages], 0);
    order_weights(weights, piece, ring + stage * few_stage_bytes<columns>, &barriers.weights[stage]);
  };
  return for_each_stage(pieces, {barriers.empty, stages, stuck}, fetch);
}

// Activations as a block's columns take them: groups of 8 tokens, so many k64 blocks each, of which the first
// is K's block `first_block`.
struct FewTokens {
  const std::uint8_t* x;  // of the first group
  int groups, blocks, first_block;
};

// By a warp, lane i of which brings the i-th group of tokens.
template <int columns, int chunks>
__device__ __forceinline__ void fetch_token_stages(const FewTokens& tokens, const Pieces<chunks>& pieces,
                                                   std::uint8_t* ring, FewBarriers& barriers, int stages,
                                                   std::uint32_t* stuck) {
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = tokens.groups;
  const std::uint8_t* const x =
      tokens.x + static_cast<std::size_t>(lane) * static_cast<std::size_t>(tokens.blocks) * token_block_bytes;
  const auto fetch = [&](const Pieces<chunks>& piece, int stage, int) {
    const int bytes = piece.count() * token_block_bytes;
    if (lane == 0)
      ptx::mbarrier_arrive_expecting(&barriers.tokens[stage], static_cast<std::uint32_t>(groups * bytes));
    __syncwarp();  // bytes are announced before any come
    if (lane < groups) {
      ptx::bulk_copy_to_shared(
          ring + stage * few_stage_bytes<columns> + stage_weight_bytes + lane * stage_group_bytes,
          x + static_cast<std::size_t>(piece.block - tokens.first_block) * token_block_bytes,
          static_cast<std::uint32_t>(bytes), &barriers.tokens[stage]);
    }
  };
  for_each_stage(pieces, {barriers.empty, stages, stuck}, fetch);
}

// The multiplying warpgroup's way through the ring.
template <int columns>
struct FewProducts {
  std::uint8_t* ring;
  FewBarriers& barriers;
  int stages;
  RingTurn turn;

  // Of k64 blocks [begin, past), from zero.
  __device__ __forceinline__ void multiply(float (&sums)[columns / 2], int begin, int past) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int left = past - begin; left > 0; left -= stage_blocks) {
      ptx::mbarrier_wait(&barriers.weights[turn.stage], turn.round & 1);
      ptx::mbarrier_wait(&barriers.tokens[turn.stage], turn.round & 1);
      __syncwarp();
      const std::uint8_t* const weights = ring + turn.stage * few_stage_bytes<columns>;
      multiply_stage<TokenGroups<stage_group_bytes>>(sums, weights, weights + stage_weight_bytes, left);
      leave_stage(barriers.empty, before);
      before = turn.stage;
      turn.next(stages);
    }
    ptx::wgmma_wait(sums);
    leave_stage(barriers.empty, before);
  }
};

}  // namespace nibble
