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

// Finds a tile's slots among all choices, by `warps` warps.
template <int warps>
__device__ __forceinline__ void find_slots(const MoeManyTokens& of, const MoeManyTile& tile,
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
}

// Eight lanes hold a token's k64 block as it lies in the row, 16 bytes each. Afterwards lane l has the words
// that a tile's piece of 16 bytes has, pair `gathered_pair(l)` of each of the four lanes of an operand's row.
__device__ __forceinline__ constexpr int gathered_pair(int lane) { return lane % 2 * 4 + lane % 8 / 2; }
__device__ __forceinline__ void exchange_words(uint4& words, int lane) {
  const bool odd = (lane & 2) != 0, upper = (lane & 4) != 0;
  const auto swap = [](std::uint32_t& low, std::uint32_t& high, bool gives_low, int lanes_apart) {
    const std::uint32_t given = gives_low ? low : high,
                        taken = __shfl_xor_sync(all_lanes, given, lanes_apart);
    if (gives_low) {
      low = taken;
    } else {
      high = taken;
    }
  };
  swap(words.x, words.y, odd, 2);
  swap(words.z, words.w, odd, 2);
  swap(words.x, words.z, upper, 4);
  swap(words.y, words.w, upper, 4);
}

// K64 blocks [block, past_block) of a tile of x, by `warps` warps; who has the first block also says which
// slots they are. Finds the tile's slots, then brings their activations, a warp four tokens and some k64
// blocks at a time.
template <int warps>
__device__ __forceinline__ void gather_tile(const MoeManyTokens& of, const MoeManyTile& tile, std::uint8_t* x,
                                            std::int32_t* slots, int block, int past_block,
                                            GatherRoom<warps>& room, int warp, int lane) {
  constexpr int threads = warps * 32, at_once = 8, tokens_at_once = 4;
  const int thread = warp * 32 + lane, width = tile.width;
  if (of.sorted.counts == nullptr) {
    find_slots<warps>(of, tile, room, warp, lane);
  } else {
    const std::int32_t* const list = of.sorted.slots + of.sorted.begins[tile.expert] + tile.first;
    for (int place = thread; place < width; place += threads)
      room.slots[place] = place < tile.tokens ? list[place] : -1;
  }
  ptx::named_barrier(1, threads);  // the slots are there
  if (block == 0) {
    for (int place = thread; place < width; place += threads) slots[place] = room.slots[place];
  }
  const int token_groups = width / tokens_at_once, piece = lane % 8;
  const int items = token_groups * ((past_block - block + at_once - 1) / at_once);
  for (int item = warp; item < items; item += warps) {
    const int blocks_of = item / token_groups, first = block + blocks_of * at_once;
    const int token = (item - blocks_of * token_groups) * tokens_at_once + lane / 8, slot = room.slots[token];
    const Bf16* const row =
        of.x + static_cast<std::size_t>(max(slot, 0) / of.top_k) * static_cast<std::size_t>(of.x_stride);
    uint4 words[at_once] = {};
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      if (slot >= 0 && first + n < past_block)
        words[n] = *reinterpret_cast<const uint4*>(row + (first + n) * granule_k + piece * 8);
    }
    std::uint8_t* const to = x + moe_tile_offset(width, token, 2 * gathered_pair(lane));
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      exchange_words(words[n], lane);
      if (first + n < past_block)
        *reinterpret_cast<uint4*>(to + (first + n) * width * moe_row_bytes) = words[n];
    }
  }
}

}  // namespace nibble::moe_many
