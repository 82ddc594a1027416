#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_many_tiles.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int most_group_threads = 1024;
constexpr int gather_threads = 256;
constexpr int ids_at_once = 8;  // loads that a thread of the grouping has on their way

// Threads of the grouping: with few, its scan over warps and its barriers are short, and with many slots each
// thread still has few loads one after the other.
constexpr int group_threads_of(int slots) { return slots <= 256 * ids_at_once ? 256 : most_group_threads; }

MoeManyPlaces places_in(std::uint8_t* memory, int slots, int experts, int hidden_blocks) {
  const int tiles = moe_many_tiles(slots, experts), rows = moe_many_rows(slots, experts);
  MoeManyPlaces places;
  places.tiles = reinterpret_cast<MoeManyTile*>(memory);
  places.slots = reinterpret_cast<std::int32_t*>(places.tiles + tiles);
  places.tile_count = places.slots + rows;
  places.next_item = places.tile_count + 1;
  places.h_ready = reinterpret_cast<std::uint32_t*>(places.next_item + 1);
  places.x = memory + moe_many_table_bytes(slots, experts);
  places.h =
      places.x + static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden_blocks) * moe_row_bytes;
  return places;
}

// Calls visit(slot, expert) for the thread's slots of an expert.
template <class Visit>
__device__ __forceinline__ void for_slots(const std::int32_t* expert_ids, int slots, const Visit& visit) {
  const int threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < slots; first += ids_at_once * threads) {
    std::int32_t ids[ids_at_once];
#pragma unroll
    for (int i = 0; i < ids_at_once; ++i)
      ids[i] = first + i * threads < slots ? expert_ids[first + i * threads] : -1;
#pragma unroll
    for (int i = 0; i < ids_at_once; ++i) {
      if (ids[i] >= 0) visit(first + i * threads, ids[i]);
    }
  }
}

// One block. Slots of an expert land in order of arrival: which column a token gets moves no bit.
__global__ void __launch_bounds__(most_group_threads)
    moe_group_many(const std::int32_t* expert_ids, int slots, int experts, MoeManyWidths widths,
                   MoeManyPlaces places) {
  std::int32_t* const next = reinterpret_cast<std::int32_t*>(ptx::dynamic_shared());  // [experts]
  __shared__ std::int32_t warp_tiles[most_group_threads / 32], warp_rows[most_group_threads / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x);
  ptx::grid_launch_dependents();
  for (int expert = thread; expert < experts; expert += threads) next[expert] = 0;
  ptx::grid_dependency_wait();
  __syncthreads();
  for_slots(expert_ids, slots, [&](int, int expert) { atomicAdd(&next[expert], 1); });
  __syncthreads();
  int tiles_before = 0, rows_before = 0;
  for (int first = 0; first < experts; first += threads) {
    const int expert = first + thread;
    const int count = expert < experts ? next[expert] : 0;
    int tiles = 0, rows = 0;
    for (int left = count; left > 0; ++tiles) {
      const int width = widths.next(left);
      rows += width;
      left -= width;
    }
    int tile = tiles, row = rows;  // sums up to this expert, then before it
    for (int step = 1; step < 32; step *= 2) {
      const int left_tile = __shfl_up_sync(0xffffffffu, tile, step);
      const int left_row = __shfl_up_sync(0xffffffffu, row, step);
      if (lane >= step) tile += left_tile, row += left_row;
    }
    if (lane == 31) warp_tiles[warp] = tile, warp_rows[warp] = row;
    __syncthreads();
    tile += tiles_before - tiles, row += rows_before - rows;
    for (int w = 0; w < threads / 32; ++w) {
      if (w < warp) tile += warp_tiles[w], row += warp_rows[w];
      tiles_before += warp_tiles[w], rows_before += warp_rows[w];
    }
    if (expert < experts) next[expert] = row;
    for (int pad = count; pad < rows; ++pad) places.slots[row + pad] = -1;
    for (int left = count; left > 0; ++tile) {
      const int width = widths.next(left);
      places.tiles[tile] = {expert, width, row, 0};
      places.h_ready[tile] = 0;
      row += width;
      left -= width;
    }
    __syncthreads();  // the warps' sums have been read; the experts' first rows are there
  }
  if (thread == 0) {
    *places.tile_count = tiles_before;
    *places.next_item = 0;
  }
  for_slots(expert_ids, slots,
            [&](int slot, int expert) { places.slots[atomicAdd(&next[expert], 1)] = slot; });
}

// A thread a token and k64 block at a time: 128 bytes in, 8 x 16 bytes out.
__global__ void __launch_bounds__(gather_threads)
    moe_gather_many(const Bf16* x, int x_stride, int top_k, int blocks, MoeManyPlaces places) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int at = static_cast<int>(blockIdx.y);
  const MoeManyTile tile = places.tiles[at];  // beside the count, though behind the last tile it is none
  if (at >= *places.tile_count) return;
  std::uint8_t* const out =
      places.x + static_cast<std::size_t>(tile.row) * static_cast<std::size_t>(blocks) * moe_row_bytes;
  const int threads = static_cast<int>(gridDim.x) * gather_threads;
  for (int i = static_cast<int>(blockIdx.x) * gather_threads + static_cast<int>(threadIdx.x);
       i < tile.width * blocks; i += threads) {
    const int block = i / tile.width, token = i - block * tile.width;
    const int slot = places.slots[tile.row + token];
    std::uint32_t words[4][8] = {};  // by lane of the row, then pairs in order
    if (slot >= 0) {
      const Bf16* row =
          x + static_cast<std::size_t>(slot / top_k) * static_cast<std::size_t>(x_stride) + block * granule_k;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 quad = *reinterpret_cast<const uint4*>(row + t * 16 + half * 8);
          words[t][4 * half] = quad.x, words[t][4 * half + 1] = quad.y;
          words[t][4 * half + 2] = quad.z, words[t][4 * half + 3] = quad.w;
        }
      }
    }
    std::uint8_t* const to = out + block * tile.width * moe_row_bytes;
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      *reinterpret_cast<uint4*>(to + moe_tile_offset(tile.width, token, 2 * pair)) =
          make_uint4(words[0][pair], words[1][pair], words[2][pair], words[3][pair]);
    }
  }
}

}  // namespace

MoeManyPlaces launch_moe_many_tiles(const MoeCudaArgs& args, int experts, int hidden_blocks,
                                    const MoeManyWidths& widths, cudaStream_t stream) {
  const int slots = args.tokens * args.top_k, tiles = moe_many_tiles(slots, experts);
  const MoeManyPlaces places = places_in(args.workspace.many, slots, experts, hidden_blocks);
  launch_kernel({.blocks = dim3(1),
                 .threads = group_threads_of(slots),
                 .shared_bytes = static_cast<std::size_t>(experts) * sizeof(std::int32_t),
                 .stream = stream,
                 .overlaps = true},
                moe_group_many, args.expert_ids, slots, experts, widths, places);
  // Blocks that share a tile, so many that the mean one, filled up to a width, leaves a thread one pair: what
  // a pair waits for is three loads, one after the other.
  const int pairs = (slots / tiles + 8) * hidden_blocks;
  const int shares = std::clamp((pairs + gather_threads - 1) / gather_threads, 1, 16);
  launch_kernel({.blocks = dim3(static_cast<unsigned>(shares), static_cast<unsigned>(tiles)),
                 .threads = gather_threads,
                 .stream = stream,
                 .overlaps = true},
                moe_gather_many, args.x, args.x_stride, args.top_k, hidden_blocks, places);
  return places;
}

}  // namespace nibble
