// A tile of queries in a block of latent attention: where queries, vectors and weights lie in shared memory,
// and the scalars of a total.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/ptx/warpgroup_swizzled.cuh"

namespace nibble {

inline constexpr int tile_queries = static_cast<int>(latent_tile);
// Warpgroups that compute, and warps that load for each: of even steps and of odd ones.
inline constexpr int sides = 2;
inline constexpr int side_load_threads = 64, load_threads = sides * side_load_threads,
                     side_load_warps = side_load_threads / 32, side_threads = 128, side_warps = 4,
                     compute_threads = sides * side_threads;
inline constexpr int latent_threads = load_threads + compute_threads;
// Columns come and go in groups, tiles of wgmma (warpgroup_swizzled.cuh).
inline constexpr int group_columns = 64, side_groups = 4, most_groups = 9;
inline constexpr int group_bytes = 64 * ptx::swizzled_row_bytes;
static_assert(tile_queries == 64 && latent_step == 64);
// A step's weights lie where the last group's vectors were: they have no part in sums.
inline constexpr int weights_group = most_groups - 1;

struct LatentShared {
  std::uint8_t queries[most_groups][group_bytes];
  std::uint8_t vectors[sides][most_groups][group_bytes];  // of a step of each side
  float levels[sides][tile_queries];                      // behind a side's step
  float weights[sides][tile_queries];                     // of a split
  std::uint64_t queries_full, queries_empty;
  std::uint64_t full[sides][most_groups], empty[sides][most_groups];
};

NIBBLE_HOST_DEVICE constexpr int latent_partial_floats_of(int rank) {
  return static_cast<int>(latent_partial(rank));
}

// Takes lists with tiles of latent_few_tile queries.
void launch_latent_attention_few(const LatentAttentionCudaArgs& args, float exponents, int processors,
                                 cudaStream_t stream);

// Which of the groups comes at turn `turn`: those of both sides' columns in turns, as they become free.
NIBBLE_HOST_DEVICE constexpr int latent_group_at(int turn, int groups) {
  const int before_last = groups < most_groups ? groups : weights_group;
  const int both = before_last > side_groups ? before_last - side_groups : 0;
  if (turn >= before_last) return turn;
  return turn >= 2 * both ? turn - both : turn / 2 + turn % 2 * side_groups;
}

// Where a piece of a row lies in its tile.
__device__ __forceinline__ int latent_piece_at(int row, int piece) {
  return row * ptx::swizzled_row_bytes + (piece ^ row % 8) * 16;
}

// Calls work(item), of the items that this block takes: in rounds of alternating direction.
template <class Work>
__device__ __forceinline__ void for_each_latent_item(const std::uint8_t* work_list, const Work& work) {
  const int items = reinterpret_cast<const LatentWorkHeader*>(work_list)->items;
  const auto* const listed = reinterpret_cast<const LatentItem*>(work_list + sizeof(LatentWorkHeader));
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  for (int begin = 0, round = 0; begin < items; begin += blocks, ++round) {
    const int index = begin + (round % 2 == 0 ? block : blocks - 1 - block);
    if (index < items) work(listed[index]);
  }
}

// What an item's tile sees.
struct LatentSteps {
  int last;        // position of the tile's last query
  int begin, end;  // steps of the item

  __device__ __forceinline__ LatentSteps(const LatentItem& item, int heads)
      : last((item.query + item.count - 1) / heads + item.shift),
        begin(latent_split_begin(item.split_begin)),
        end(min(last / latent_step + 1, latent_split_begin(item.split_end))) {}
};

inline constexpr float latent_unseen = -std::numeric_limits<float>::infinity();

// The largest score of query `which` of a lane's two, g and g + 8, in the four lanes that have it. Of every 8
// positions a lane has 2t and 2t + 1: the first query's two, then the second's.
template <int count>
__device__ __forceinline__ float latent_largest(const float (&s)[count], int which) {
  float largest = latent_unseen;
#pragma unroll
  for (int j = 2 * which; j < count; j += 4) {
    if (!(s[j] <= largest)) largest = s[j];
    if (!(s[j + 1] <= largest)) largest = s[j + 1];
  }
#pragma unroll
  for (int apart = 1; apart <= 2; apart *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, apart);
    if (!(other <= largest)) largest = other;
  }
  return largest;
}

// Sixteen codes of a row as bfloat16, pieces 2 * two and 2 * two + 1 of its row in a tile.
__device__ __forceinline__ void put_converted(std::uint8_t* tile, int row, int two, const uint4& codes) {
  const std::uint32_t fours[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t four = fours[2 * which + j / 2];
      words[j] = ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(j % 2 == 0 ? four : four >> 16));
    }
    *reinterpret_cast<uint4*>(tile + latent_piece_at(row, 2 * two + which)) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Of levels m in whole powers of two: what a total is multiplied by as its level becomes `to`.
__device__ __forceinline__ float latent_factor(float from, float to) {
  return to == from ? 1.0f : ptx::exp2_fast(from - to);
}
// A total's side that takes in a split's.
__device__ __forceinline__ float latent_taken_in(float total, float keeps, float split, float adds) {
  return fmaf(split, adds, __fmul_rn(total, keeps));
}
}  // namespace nibble
