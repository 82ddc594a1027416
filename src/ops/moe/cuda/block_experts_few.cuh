// One of an expert layer's two products with weights in blocks (ops/linear/cuda/block_matrices.h), for few
// tokens: every used expert's weights stream past once.
//
// A block a multiprocessor, of eight warps. A warp has a granule of 16 rows over the whole of K, and of an
// expert with more than eight tokens every eight of them are another granule's work. Blocks have equal
// contiguous ranges of granules, of which a warp takes every eighth, and so their order in time moves no bit.
// A warp has a ring of its own that runs ahead from granule to granule, so that nothing is waited for but
// bytes: 12 KB a warp are on their way, 96 KB a multiprocessor, which leaves room for a block of the launch
// before or behind it. FP8 takes some 80 instructions a KB of weights, of 208 that a multiprocessor has while
// the KB comes.
//
// The choices of experts are read when the kernel ahead has them (Awaits::choices). The product with the down
// projection knows them before the one ahead has ended, and fills its rings meanwhile (Awaits::inputs).
#pragma once

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/moe/cuda/block_moe_cuda.h"
#include "ops/moe/cuda/group_by_warps.cuh"
#include "ops/moe/cuda/moe_decode_work.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble::block_experts {

using namespace block_products;

inline constexpr int warps = 8, threads = warps * 32;
inline constexpr int stages = 3, stage_bytes = 4096;  // of a warp's ring
inline constexpr int ring_bytes = warps * stages * stage_bytes;
inline constexpr int barriers_at = ring_bytes;
inline constexpr int nobodys_at =
    barriers_at + (warps * stages * 8 + 15) / 16 * 16;  // where touched lines go
inline constexpr int groups_at = nobodys_at + threads * 4;
// A row of x is found without a division for fewer slots than 2^16 / 16.
inline constexpr int most_slots = 4095;
// Slots are grouped by notes that lie where the rings begin to be filled afterwards.
static_assert(group_notes_bytes(most_slots, block_moe_most_experts, warps) <= ring_bytes);

enum class Awaits { choices, inputs };

template <class Codes, class Store>
struct Params {
  BlockMatrices<Codes> weights;
  const Bf16* x;
  int x_stride;
  std::uint32_t of_slots_a_row;  // of x: of top_k, or of 1
  int slots;
  FreshSlotChoices choices;
  int granules;
  std::uint32_t of_block;  // 2^32 / blocks, rounded down
  Store store;
};

using Walk = DecodeWalk<warps>;

// What a warp fetches next.
template <class Codes, class Store>
struct Feed {
  const Params<Codes, Store>& params;
  const ExpertGroups& groups;
  Walk walk;
  const std::uint8_t* from = nullptr;
  int left = 0;  // bytes of the granule
  bool begun = false;

  __device__ __forceinline__ void fetch(std::uint8_t* to, std::uint64_t* full) {
    if (left == 0) {
      if (begun && walk.left > 0) walk.next(groups, params);
      if (walk.left == 0) return;
      begun = true;
      int pass;
      const unsigned granule = static_cast<unsigned>(walk.granule(pass)),
                     of_all = static_cast<unsigned>(groups.experts[walk.active] * params.granules) + granule;
      left = static_cast<int>(params.weights.shape.granule_bytes());
      from = params.weights.data + std::uint64_t{of_all} * static_cast<unsigned>(left);
    }
    const int bytes = min(left, stage_bytes);
    if (ptx::elected_lane()) {
      ptx::mbarrier_arrive_expecting(full, static_cast<std::uint32_t>(bytes));
      if (walk.passes == 1) {
        ptx::bulk_copy_once_to_shared(to, from, static_cast<std::uint32_t>(bytes), full);
      } else {
        ptx::bulk_copy_to_shared(to, from, static_cast<std::uint32_t>(bytes), full);
      }
    }
    from += bytes;
    left -= bytes;
  }
};

// A granule and eight of its expert's tokens.
struct Unit {
  int granule = 0;
  int begin = 0, count = 0;  // of its slots
  const std::uint8_t* x = nullptr;
  BlockFactors factor[2] = {};       // of blocks lane and lane + 32
  block_products::RowScales scales;  // of the lane's rows
};

template <class Codes, class Store>
__device__ __forceinline__ Unit read_unit(const Params<Codes, Store>& params, const ExpertGroups& groups,
                                          const Walk& walk, int lane) {
  Unit unit;
  int pass;
  unit.granule = walk.granule(pass);
  unit.begin = groups.begin[walk.active] + pass * group_pass_tokens;
  unit.count = groups.begin[walk.active + 1] - unit.begin;
  // A column past the last token repeats it: its sums are dropped.
  const int slot = groups.slots[unit.begin + min(lane / 4, unit.count - 1)];
  unit.x = reinterpret_cast<const std::uint8_t*>(
      params.x + static_cast<std::size_t>(row_of_slot(slot, params.of_slots_a_row)) *
                     static_cast<std::size_t>(params.x_stride));
  if constexpr (Codes::scaled) {
    const int blocks = params.weights.shape.scale_blocks();
    const BlockFactors* const from =
        params.weights.factors +
        (static_cast<std::size_t>(groups.experts[walk.active]) * static_cast<std::size_t>(params.granules) +
         static_cast<std::size_t>(unit.granule)) *
            static_cast<std::size_t>(blocks);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane + 32 * i < blocks) unit.factor[i] = from[lane + 32 * i];
    }
    unit.scales = row_scales_of(params.weights, groups.experts[walk.active],
                                unit.granule * block_granule_rows + lane / 4 * 2);
  }
  return unit;
}

// Columns whose factors a warp's lanes hold.
inline constexpr int most_columns = 64 * block_scale_columns;

// A warp's way through its granules.
template <class Codes, class Store>
struct Worker {
  static constexpr int stage_blocks = stage_bytes / (2 * Codes::block_bytes);  // of 128 columns
  const Params<Codes, Store>& params;
  const ExpertGroups& groups;
  std::uint8_t* ring;      // [stages, stage_bytes]
  std::uint64_t* full;     // [stages]
  std::uint32_t* nobodys;  // this lane's
  int lane;
  Feed<Codes, Store> feed;
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void fill_ring() {
#pragma unroll
    for (int into = 0; into < stages; ++into) feed.fetch(ring + into * stage_bytes, full + into);
    __syncwarp();  // products need all lanes at once
  }

  // The sums of a stage's blocks of 128 columns, whose chains do not wait for each other, and the totals.
  template <int count>
  __device__ __forceinline__ void multiply_stage(const Unit& unit, const std::uint8_t* at, int first,
                                                 float (&totals)[4]) {
    float sums[count][1][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        Share<Codes> share;
        LaneInputs x[1];
        share.load(at + (2 * i + half) * Codes::block_bytes, lane);
        x[0].load<ColumnOrder::quarters>(unit.x + (first + 2 * i + half) * (block_k * 2), 16, lane % 4);
        multiply_block(sums[i], share, x);
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) add(unit, first / 2 + i, sums[i][0], totals);
  }
  __device__ __forceinline__ void add(const Unit& unit, int block, const float (&sums)[4],
                                      float (&totals)[4]) {
    float even = 1, odd = 1;
    if constexpr (Codes::scaled) {
      even = __shfl_sync(0xffffffffu, block < 32 ? unit.factor[0].even : unit.factor[1].even, block % 32);
      odd = __shfl_sync(0xffffffffu, block < 32 ? unit.factor[0].odd : unit.factor[1].odd, block % 32);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) totals[j] = add_block<Codes>(totals[j], sums[j], j < 2 ? even : odd);
  }

  __device__ __forceinline__ void multiply(const Unit& unit, float (&totals)[4]) {
    const int blocks = params.weights.shape.blocks();
#pragma unroll 1
    for (int first = 0; first < blocks; first += 2 * stage_blocks) {
      const std::uint8_t* const at = ring + stage * stage_bytes;
      ptx::mbarrier_wait(full + stage, phase);
      if (first + 2 * stage_blocks <= blocks) {
        multiply_stage<stage_blocks>(unit, at, first, totals);
      } else {
#pragma unroll 1
        for (int block = first; block < blocks; block += 2) {
          float sums[1][4] = {};
          for (int half = 0; half < 2 && block + half < blocks; ++half) {
            Share<Codes> share;
            LaneInputs x[1];
            share.load(at + (block - first + half) * Codes::block_bytes, lane);
            x[0].load<ColumnOrder::quarters>(unit.x + (block + half) * (block_k * 2), 16, lane % 4);
            multiply_block(sums, share, x);
          }
          add(unit, block / 2, sums[0], totals);
        }
      }
      __syncwarp();  // all lanes have read the stage, which one of them is about to have overwritten
      feed.fetch(ring + stage * stage_bytes, full + stage);
      __syncwarp();  // the next products need all lanes at once
      stage = stage + 1 < stages ? stage + 1 : 0;
      if (stage == 0) phase ^= 1;
    }
  }

  // All that the lane will read of a row is on its way to the first-level cache before the first of it is
  // waited for.
  __device__ __forceinline__ void touch(const Unit& unit) {
    if (lane / 4 >= unit.count) return;
    for (int block = 0; block < params.weights.shape.blocks(); ++block)
      ptx::touch_sector(nobodys, unit.x + block * (block_k * 2) + lane % 4 * 32);
  }

  // first: of the walk.
  __device__ __forceinline__ void run(Walk walk, const Unit& first) {
    Unit upcoming = first;
    const std::uint8_t* touched = nullptr;
#pragma unroll 1
    while (walk.left > 0) {
      const Unit unit = upcoming;
      walk.next(groups, params);
      if (unit.x != touched) touch(unit);
      touched = unit.x;
      __syncwarp();  // products need all lanes at once
      if (walk.left > 0) upcoming = read_unit(params, groups, walk, lane);
      float totals[4] = {};
      multiply(unit, totals);
      const int row = unit.granule * block_granule_rows + lane / 4 * 2;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = lane % 4 * 2 + j;
        if (column < unit.count) {
          params.store.put(groups.slots[unit.begin + column], row,
                           params.store.value(__fmul_rn(totals[j], unit.scales.even),
                                              __fmul_rn(totals[2 + j], unit.scales.odd)));
        }
      }
      __syncwarp();  // the next products need all lanes at once
    }
  }
};

template <class Codes, Awaits awaits, class Store>
__global__ void __launch_bounds__(threads, 2)
    stream_experts(const __grid_constant__ Params<Codes, Store> params) {
  std::uint8_t* const shared = ptx::dynamic_shared();
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  std::uint64_t* const full = reinterpret_cast<std::uint64_t*>(shared + barriers_at) + warp * stages;
  const ExpertGroups groups = expert_groups_at(shared + groups_at, params.slots, params.choices.experts);
  if (lane == 0) {
    for (int i = 0; i < stages; ++i) ptx::mbarrier_init(full + i, 1);
    ptx::fence_mbarrier_init();
  }
  // Dependents may begin when the choices are there, which they take for granted.
  if constexpr (awaits == Awaits::choices) ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  if (params.slots <= 32) {
    if (warp == 0)
      write_groups(groups, group_lanes(lane < params.slots ? params.choices.expert_of(lane) : -1));
    __syncthreads();
  } else {
    group_slots_by_warps<warps>(groups, group_notes_at(shared, params.slots, warps), params.choices,
                                params.slots);
  }
  Walk walk{.chunk = 0};
  walk.enter(groups, params.granules, params.of_block, warp);
  Worker<Codes, Store> worker{.params = params,
                              .groups = groups,
                              .ring = shared + warp * stages * stage_bytes,
                              .full = full,
                              .nobodys = reinterpret_cast<std::uint32_t*>(shared + nobodys_at) + threadIdx.x,
                              .lane = lane,
                              .feed = {.params = params, .groups = groups, .walk = walk}};
  worker.fill_ring();
  Unit first;
  if (walk.left > 0) first = read_unit(params, groups, walk, lane);
  if constexpr (awaits == Awaits::inputs) ptx::grid_dependency_wait();
  worker.run(walk, first);
}

template <Awaits awaits, class Codes, class Store>
void launch_experts(Params<Codes, Store> params, int tokens, cudaStream_t stream) {
  const int processors = processors_of_device();
  params.granules = params.weights.shape.granules();
  params.of_block = static_cast<std::uint32_t>((1ull << 32) / static_cast<unsigned>(processors));
  const int needed = groups_at + expert_groups_bytes(params.slots, params.choices.experts);
  // Blocks of the second product come to those of the first, one to each.
  const int shared_bytes = awaits == Awaits::choices ? std::max(needed, shared_of_lone_block) : needed;
  const auto kernel = stream_experts<Codes, awaits, Store>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors)),
                 .threads = threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(tokens)},
                kernel, params);
}

}  // namespace nibble::block_experts
