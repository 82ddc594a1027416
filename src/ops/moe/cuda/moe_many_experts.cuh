// What a block works out for itself: how many tokens each expert has, and so which tiles there are.
#pragma once

#include "ops/moe/cuda/moe_many_tiles.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble::moe_many {

inline constexpr unsigned all_lanes = 0xffffffffu;
inline constexpr int ids_at_once = 8;  // loads that a thread has on their way

// The sum over the warp's lanes up to this one.
__device__ __forceinline__ int sum_up_to_lane(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(all_lanes, value, step);
    if (lane >= step) value += left;
  }
  return value;
}

// Of a block of `threads`; in shared memory.
template <int threads>
struct ExpertTable {
  MoeManyExpert experts[moe_many_most_experts];
  std::int32_t warp_tiles[threads / 32], warp_rows[threads / 32];

  // By all threads, and a barrier before make().
  __device__ __forceinline__ void clear(int count) {
    for (int expert = static_cast<int>(threadIdx.x); expert < count; expert += threads)
      experts[expert].tokens = 0;
  }

  // By all threads; returns how many tiles there are.
  __device__ __forceinline__ int make(const MoeManyTokens& of, int count, const MoeManyWidths& widths) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const std::int32_t* const counts = of.sorted.counts;
    for (int first = thread; counts == nullptr && first < of.slots; first += ids_at_once * threads) {
      std::int32_t ids[ids_at_once];
#pragma unroll
      for (int i = 0; i < ids_at_once; ++i)
        ids[i] = first + i * threads < of.slots ? of.expert_ids[first + i * threads] : -1;
#pragma unroll
      for (int i = 0; i < ids_at_once; ++i) {
        const std::int32_t own = of.taken.expert_of(first + i * threads, ids[i]);
        if (own >= 0) atomicAdd(&experts[own].tokens, 1);
      }
    }
    __syncthreads();  // all tokens are counted
    int tiles_before = 0, rows_before = 0;
    for (int first = 0; first < count; first += threads) {
      const int expert = first + thread;
      const int tokens = expert >= count ? 0 : counts == nullptr ? experts[expert].tokens : counts[expert];
      const MoeManyCut cut(widths, tokens);
      const int tiles = cut.tiles, last = cut.places_before(max(0, tiles - 1));
      const int rows = tiles == 0 ? 0 : last + widths.holding(tokens - last);
      const int tiles_in_warp = sum_up_to_lane(tiles, lane), rows_in_warp = sum_up_to_lane(rows, lane);
      if (lane == 31) warp_tiles[warp] = tiles_in_warp, warp_rows[warp] = rows_in_warp;
      __syncthreads();  // the warps' sums are there
      int tile = tiles_before + tiles_in_warp, row = rows_before + rows_in_warp - rows;
      for (int w = 0; w < min(threads, count - first + 31) / 32; ++w) {
        if (w < warp) tile += warp_tiles[w], row += warp_rows[w];
        tiles_before += warp_tiles[w], rows_before += warp_rows[w];
      }
      if (expert < count) {
        experts[expert] = {tokens,
                           tile,
                           row,
                           static_cast<std::uint16_t>(cut.wide),
                           static_cast<std::uint8_t>(cut.width),
                           static_cast<std::uint8_t>(cut.narrower)};
      }
      __syncthreads();  // they have been read, and the experts are there
    }
    return tiles_before;
  }

  // By a whole warp.
  __device__ __forceinline__ MoeManyTile tile(int index, int count, const MoeManyWidths& widths,
                                              int lane) const {
    int expert = 0;  // as many as have all their tiles before this one
    for (int first = 0; first < count; first += 32) {
      const bool before = first + lane < count && experts[first + lane].tiles <= index;
      expert += __popc(__ballot_sync(all_lanes, before));
    }
    const MoeManyExpert of = experts[expert];
    MoeManyCut cut;
    cut.wide = of.wide, cut.width = of.width, cut.narrower = of.narrower;
    const int tile = index - (expert == 0 ? 0 : experts[expert - 1].tiles);
    const int first = cut.places_before(tile), tokens = min(cut.width_of(tile), of.tokens - first);
    return {expert, widths.holding(tokens), of.row + first, first, tokens, tokens == of.tokens};
  }
};

}  // namespace nibble::moe_many
