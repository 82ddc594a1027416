// What the kernel for few tokens works on, and in which order a warp of it does: plain arithmetic on the
// launch's tables, the same in all lanes.
#pragma once

#include "ops/moe/cuda/expert_groups.cuh"
#include "ops/moe/cuda/k_stages.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {

inline constexpr int decode_team_warps = granule_k_chunks;

// A slot's row of the inputs without a division: 2^16 over the row's slots, rounded up, is too large by at
// most 1, which for fewer slots than 2^16 / 16 (moe_cuda_max_slots is 1,024) and at most 16 a row carries
// nothing over.
constexpr std::uint32_t of_slots_a_row(int slots) { return 65536u / static_cast<unsigned>(slots) + 1; }
__host__ __device__ constexpr int row_of_slot(int slot, std::uint32_t of_slots_a_row) {
  return static_cast<int>(static_cast<unsigned>(slot) * of_slots_a_row >> 16);
}

// One of the layer's two products as the kernel sees it.
template <class Layout>
struct DecodeProduct {
  const std::uint8_t* weights;
  const Bf16* bias;    // [experts, rows]; null: without
  const Bf16* inputs;  // [.., input_stride]
  int input_stride;
  std::uint32_t of_slots_a_row;  // of the inputs: of top_k for x, of 1 for h
  int rows, granules;
  int granule_bytes;
  KChunks chunks;
  typename Layout::SumFactor factor;
};

// MoePeers as the kernel takes it; a room of one rank where there are none.
struct DecodePeers {
  PeerRoom room;
  PeerPlaces windows;  // the others'
  float* window;
  SlotOwners owners;
};

template <class Layout>
struct DecodeParams {
  DecodeProduct<Layout> products[2];  // gate_up, down
  int slots, experts;
  MoeTaken taken;
  const std::int32_t* expert_ids;
  Bf16* activations;  // [slots, padded intermediate], the second product's inputs
  float* out;         // [slots, hidden]
  std::uint32_t* arrived;
  std::uint32_t* stuck;    // MoeCudaWorkspace's
  std::uint32_t of_block;  // 2^32 / blocks, rounded down
  GatedUnit unit;
  bool settles_rows;  // MoeCudaArgs's
  DecodePeers peers;
};

// Between the products. Every block's h is visible to every block's threads afterwards.
__device__ inline void meet_experts_grid(std::uint32_t* arrived, std::uint32_t* stuck) {
  __syncthreads();  // this block's h is stored
  if (threadIdx.x == 0) {
    ptx::meet_blocks(arrived, gridDim.x, blockIdx.x == 0, stuck, Stuck::expert_grid);
  }
  __syncthreads();  // the others read h after thread 0 has seen it
}

// A unit of work is one pass over one granule; an expert's passes over a granule follow one another. Where a
// warp is among those its team takes from its block's share of a product, and which chunk is its own there.
template <int teams>  // of a block
struct DecodeWalk {
  int left;          // units, with this one
  int active, unit;  // the expert's place among those in use; which of its units
  int passes;        // the expert's
  int chunk;

  // The block's share of a product, as the team takes it: sets how many units are left, returns the first
  // one's number. Units times blocks stay below 2^32: at most 1,024 passes over an expert's rows.
  __device__ int share(unsigned units, std::uint32_t of_block, int team) {
    // Near units x block / blocks; the same number from both blocks that it lies between.
    const auto border = [&](unsigned block) {
      return static_cast<int>(
          block == gridDim.x ? units : static_cast<std::uint64_t>(units * block) * of_block >> 32);
    };
    const int begin = border(blockIdx.x) + team, end = border(blockIdx.x + 1);
    left = begin < end ? (end - begin + teams - 1) / teams : 0;
    return begin;
  }

  // To the share's first unit, by tables.
  __device__ void enter(const ExpertGroups& groups, int granules, std::uint32_t of_block, int team) {
    const int lane = static_cast<int>(threadIdx.x) % 32, experts = *groups.active;
    const int begin = share(static_cast<unsigned>(groups.passes[experts] * granules), of_block, team);
    if (left == 0) return;
    // The last expert whose passes do not begin later.
    active = 0;
    for (int first = 0; first < experts; first += 32) {
      const int a = first + lane;
      active += __popc(__ballot_sync(0xffffffffu, a < experts && groups.passes[a + 1] * granules <= begin));
    }
    unit = begin - groups.passes[active] * granules;
    passes = groups.passes[active + 1] - groups.passes[active];
  }

  // The same by what the lanes hold; returns that unit's expert.
  __device__ std::int32_t enter(const LaneGroups& lanes, int granules, std::uint32_t of_block, int team) {
    constexpr unsigned all = 0xffffffffu;
    const int begin = share(static_cast<unsigned>(lanes.all_passes * granules), of_block, team);
    const int own = begin - lanes.first_pass * granules;
    const unsigned found = __ballot_sync(all, own >= 0 && own < lanes.passes * granules);
    const int lane = __ffs(static_cast<int>(found | 1u << 31)) - 1;  // any, if nothing is left
    active = __popc(lanes.leaders & ((1u << lane) - 1));
    unit = __shfl_sync(all, own, lane);
    passes = __shfl_sync(all, lanes.passes, lane);
    return __shfl_sync(all, lanes.expert, lane);
  }

  template <class Product>
  __device__ void next(const ExpertGroups& groups, const Product& product) {
    chunk = chunk + 1 < decode_team_warps ? chunk + 1 : 0;
    advance(groups, product);
  }
  // The same with the same chunk.
  template <class Product>
  __device__ void advance(const ExpertGroups& groups, const Product& product) {
    if (--left == 0) return;
    unit += teams;
    while (unit >= passes * product.granules) {
      unit -= passes * product.granules;
      ++active;
      passes = groups.passes[active + 1] - groups.passes[active];
    }
  }

  // The granule, and in `pass` which eight of the tokens.
  __device__ int granule(int& pass) const {
    pass = 0;
    if (passes == 1) return unit;
    // A division of integers would be a tenth of what a warp does for a unit. The quotient is at least
    // 0.5 / passes from a whole number, which is more than rounding moves it for any unit below 2^20.
    const int granule =
        static_cast<int>(__fdividef(static_cast<float>(unit) + 0.5f, static_cast<float>(passes)));
    pass = unit - granule * passes;
    return granule;
  }
};

// What a warp fetches next: it runs a ring ahead of what the warp works on.
template <int teams>
struct DecodeFeed {
  DecodeWalk<teams> walk;
  int second;
  const std::uint8_t* from;
  int blocks;         // of the unit, that are still to be fetched
  int stage, longer;  // KChunk's; of the stages that are still to be fetched

  template <class Layout>
  __device__ void point(const DecodeParams<Layout>& params, int expert) {
    const DecodeProduct<Layout>& product = params.products[second];
    int pass;
    const int granule = walk.granule(pass);
    const unsigned index = static_cast<unsigned>(expert * product.granules + granule);
    const KChunk& chunk = product.chunks.chunk[walk.chunk];
    from = product.weights + std::uint64_t{index} * static_cast<unsigned>(product.granule_bytes) +
           chunk.begin * granule_block_bytes<Layout>;
    blocks = chunk.blocks;
    stage = chunk.stage;
    longer = chunk.longer;
  }

  // How many blocks the next stage has, which counts as fetched.
  __device__ int take_stage() {
    const int count = stage + (longer > 0 ? 1 : 0);
    --longer;
    blocks -= count;
    return count;
  }

  // To the next unit that has blocks, in the second product too; whether there is one.
  template <class Layout>
  __device__ bool next_unit(const DecodeParams<Layout>& params, const ExpertGroups& groups,
                            const DecodeWalk<teams>& second_walk) {
    do {
      if (walk.left > 0) walk.next(groups, params.products[second]);
      if (walk.left == 0) {
        if (second == 1) return false;
        second = 1;
        const int chunk = walk.chunk;
        walk = second_walk;
        walk.chunk = chunk;
        if (walk.left == 0) return false;
      }
      point(params, groups.experts[walk.active]);
    } while (blocks == 0);
    return true;
  }
};

}  // namespace nibble
