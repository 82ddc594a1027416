// How a tile of gate_up's inputs comes to be.
#pragma once

#include "ops/moe/cuda/moe_many_experts.cuh"

namespace nibble::moe_many {

// In shared memory, of those who gather together.
template <int warps>
struct GatherRoom {
  std::int32_t found[warps];                 // of the expert's tokens, by warp
  std::int32_t slots[moe_many_widest_tile];  // the tile's
};

// K64 blocks [block, past_block) of a tile of x, by `warps` warps; who has the first block also says which
// slots they are. Finds the tile's slots, then brings their activations, a thread a token and k64 block at a
// time, 128 bytes in and 8 x 16 bytes out.
template <int warps>
__device__ __forceinline__ void gather_tile(const MoeManyTokens& of, const MoeManyTile& tile, std::uint8_t* x,
                                            std::int32_t* slots, int block, int past_block,
                                            GatherRoom<warps>& room, int warp, int lane) {
  constexpr int threads = warps * 32;
  const int thread = warp * 32 + lane, width = tile.width;
  // A warp looks through a run of all slots, twice: how many are the expert's, then which.
  const int run = (of.slots + threads - 1) / threads * 32;
  const int begin = warp * run, end = min(begin + run, of.slots);
  const auto for_slots = [&](const auto& visit) {
    for (int at = begin + lane; at - lane < end; at += 32 * ids_at_once) {
      std::int32_t ids[ids_at_once];
#pragma unroll
      for (int i = 0; i < ids_at_once; ++i) ids[i] = at + 32 * i < end ? of.expert_ids[at + 32 * i] : -1;
#pragma unroll
      for (int i = 0; i < ids_at_once; ++i) {
        const bool is = ids[i] == of.taken.first_expert + tile.expert;
        visit(at + 32 * i, is, __ballot_sync(all_lanes, is));
      }
    }
  };
  int found = 0;
  for_slots([&](int, bool, unsigned lanes) { found += __popc(lanes); });
  if (lane == 0) room.found[warp] = found;
  ptx::named_barrier(1, threads);  // the warps' numbers are there, and the list before has been read
  for (int place = tile.tokens + thread; place < width; place += threads) room.slots[place] = -1;
  int before = -tile.first;
  for (int w = 0; w < warp; ++w) before += room.found[w];
  for_slots([&](int slot, bool is, unsigned lanes) {
    const int place = before + __popc(lanes & ((1u << lane) - 1));
    if (is && place >= 0 && place < tile.tokens) room.slots[place] = slot;
    before += __popc(lanes);
  });
  ptx::named_barrier(1, threads);  // the slots are there
  if (block == 0) {
    for (int place = thread; place < width; place += threads) slots[place] = room.slots[place];
  }
  for (int i = block * width + thread; i < past_block * width; i += threads) {
    const int of_block = i / width, token = i - of_block * width, slot = room.slots[token];
    std::uint32_t words[4][8] = {};  // by lane of the row, then pairs in order
    if (slot >= 0) {
      const Bf16* const row =
          of.x + static_cast<std::size_t>(slot / of.top_k) * static_cast<std::size_t>(of.x_stride) +
          of_block * granule_k;
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
    std::uint8_t* const to = x + of_block * width * moe_row_bytes;
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      *reinterpret_cast<uint4*>(to + moe_tile_offset(width, token, 2 * pair)) =
          make_uint4(words[0][pair], words[1][pair], words[2][pair], words[3][pair]);
    }
  }
}

}  // namespace nibble::moe_many
