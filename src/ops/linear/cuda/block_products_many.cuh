// Products with matrices in blocks (block_matrices.h) for many rows of activations, on wgmma: groups of up to
// 128 rows of one expert each, with the bits of the kernels for few.
//
// A block a multiprocessor takes items of 128 rows of weights and a group, of which neighbours share the
// group. Two warpgroups multiply, a granule a warp: they decode its codes into the registers that wgmma reads
// its first operand from, and keep a block's sums and those of the blocks before it, a register each for two
// rows of activations. A third brings what they need, a k64 block a stage of a ring: one thread orders
// weights, a box of eight granules, and all carry activations, past their registers where the weights lie in
// steps (ColumnOrder).
//
// A k64 block of 128 rows of weights and of activations takes the tensor cores 512 cycles, and shared memory
// at 128 bytes a cycle as many: 256 for activations read by both warpgroups, 128 for them to come, 64 for FP8
// to come and 64 to be read. Carried through registers they take the first-level cache 1,100.
#pragma once

#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/linear/cuda/block_outputs.cuh"
#include "ops/linear/cuda/block_paths.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/copy_groups.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble::block_products {

inline constexpr int product_warps = many_item_granules, carrying_warps = 4;
inline constexpr int many_threads = 32 * (product_warps + carrying_warps);

template <class Codes, int rows_, ColumnOrder order_>
struct ManyTiles {
  static constexpr ColumnOrder order = order_;  // of the weights
  static constexpr int carrying_registers = order == ColumnOrder::steps ? 56 : 104;
  static constexpr int product_registers = order == ColumnOrder::steps ? 224 : 200;
  static constexpr int rows = rows_;  // of activations in a group: 32, 64 or 128
  static constexpr int weight_bytes = many_item_granules * Codes::block_bytes;
  static constexpr int step_bytes = rows * 32;  // of activations, for a k16 step
  static constexpr int stage_bytes = weight_bytes + 4 * step_bytes;
  static constexpr int most_stages = 8, ring_limit = 200 * 1024;
  static constexpr int stages =
      ring_limit / stage_bytes < most_stages ? ring_limit / stage_bytes : most_stages;
  static constexpr int ring_bytes = stages * stage_bytes;
  static constexpr int shared_bytes = ring_bytes + 2 * stages * 8;
  // Parts of a block that a box brings, none above 1,024 bytes.
  static constexpr int parts = (Codes::block_bytes + 1023) / 1024;
};

template <class Codes, class Store>
struct ManyParams {
  ptx::TensorMap map;
  BlockMatrices<Codes> weights;
  Inputs x;
  RowGroups groups;
  int choices;  // consecutive rows of outputs that share one of inputs
  Store store;
};

// Calls visit(group, first granule) for each of the block's items.
template <int rows, class Codes, class Store, class Visit>
__device__ __forceinline__ void for_items(const ManyParams<Codes, Store>& params, const Visit& visit) {
  const int row_items = (params.weights.shape.granules() + many_item_granules - 1) / many_item_granules;
  const int items = params.groups.groups(rows) * row_items;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int group = item / row_items;
    visit(params.groups.at(group, rows), (item - group * row_items) * many_item_granules);
  }
}

// What the carrying warps bring of each item.
template <class Tiles, class Codes, class Store>
struct Carrier {
  static constexpr int eights = Tiles::rows / 8 / carrying_warps;  // of a warp
  const ManyParams<Codes, Store>& params;
  std::uint8_t* ring;
  std::uint64_t *full, *empty;
  int warp, lane;  // warp: of those that carry
  RingStage place;

  // A row of the warp's j-th eight. Past the last row the last: columns do not mix.
  __device__ __forceinline__ std::uint32_t row_offset(const RowGroup& group, int j, int of_eight) const {
    const int at = min((warp + carrying_warps * j) * 8 + of_eight, group.count - 1);
    return static_cast<std::uint32_t>(params.x.row_at(params.groups.row_of(group, at) / params.choices) -
                                      params.x.data);
  }
  // The stage's weights, ordered by one thread, and where its activations go.
  __device__ __forceinline__ std::uint8_t* enter(const RowGroup& group, int first_granule, int block) {
    std::uint8_t* const stage = ring + place.stage * Tiles::stage_bytes;
    ptx::mbarrier_wait(empty + place.stage, place.parity ^ 1);
    if (warp == 0 && lane == 0) {
      ptx::mbarrier_arrive_expecting(full + place.stage, Tiles::weight_bytes);
      ptx::box_copy_to_shared(stage, params.map, block * Tiles::parts,
                              group.expert * params.weights.shape.granules() + first_granule,
                              full + place.stage);
    }
    return stage + Tiles::weight_bytes + warp * 256;
  }

  // Token tiles, whose pieces are what wgmma reads where the weights lie in steps, pass by the registers. A
  // few stages are on their way, and each is told of when it has come.
  __device__ __forceinline__ void carry_pieces() {
    constexpr int ahead = Tiles::stages / 2;
    RingStage told;
    int untold = 0;
    const auto tell = [&] {
      ptx::fence_shared_writes();  // before the products that read them
      ptx::mbarrier_arrive(full + told.stage);
      told.next(Tiles::stages);
      --untold;
    };
    const int blocks = params.weights.shape.blocks(), piece = lane / 8;
    for_items<Tiles::rows>(params, [&](const RowGroup& group, int first_granule) {
      std::uint32_t x[eights];
#pragma unroll
      for (int j = 0; j < eights; ++j) x[j] = row_offset(group, j, lane % 8) + piece * params.x.piece;
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        std::uint8_t* const to = enter(group, first_granule, block) + piece / 2 * Tiles::step_bytes +
                                 piece % 2 * 128 + lane % 8 * 16;
        const std::uint8_t* const from = params.x.data + static_cast<std::size_t>(block) * params.x.block;
#pragma unroll
        for (int j = 0; j < eights; ++j) {
          ptx::copy_to_shared(to + j * (carrying_warps * 256), from + x[j]);
          ptx::copy_to_shared(to + j * (carrying_warps * 256) + 2 * Tiles::step_bytes,
                              from + x[j] + 4 * params.x.piece);
        }
        ptx::end_copy_group();
        place.next(Tiles::stages);
        if (++untold > ahead) {
          ptx::await_copy_groups<ahead>();
          tell();
        }
      }
    });
    ptx::await_copy_groups<0>();
    while (untold > 0) tell();
  }

  // Where the weights lie in quarters, through registers. A lane has a quarter of a row's elements in a k64
  // block, for one of eight rows: what it stores of them, a word at a time, lies in banks of its own.
  // Elements of the block after next are under way while those of this one are stored.
  __device__ __forceinline__ void carry_quarters() {
    const int blocks = params.weights.shape.blocks();
    for_items<Tiles::rows>(params, [&](const RowGroup& group, int first_granule) {
      std::uint32_t x[eights];
#pragma unroll
      for (int j = 0; j < eights; ++j) x[j] = row_offset(group, j, lane / 4);
      LaneInputs carried[2][eights] = {};
      const auto load = [&](LaneInputs(&to)[eights], int block) {
        const std::uint8_t* const from =
            params.x.data + static_cast<std::size_t>(min(block, blocks - 1)) * params.x.block;
#pragma unroll
        for (int j = 0; j < eights; ++j) {
          to[j].template load<ColumnOrder::quarters>(from + x[j], params.x.piece, lane % 4);
        }
      };
      const auto put = [&](const LaneInputs(&from)[eights], int block) {
        if (block >= blocks) return;
        std::uint8_t* const to = enter(group, first_granule, block) + lane * 4;
#pragma unroll
        for (int j = 0; j < eights; ++j) {
          const std::uint32_t words[8] = {from[j].low.x,  from[j].low.y,  from[j].low.z,  from[j].low.w,
                                          from[j].high.x, from[j].high.y, from[j].high.z, from[j].high.w};
#pragma unroll
          for (int piece = 0; piece < 8; ++piece) {
            *reinterpret_cast<std::uint32_t*>(to + piece / 2 * Tiles::step_bytes +
                                              j * (carrying_warps * 256) + piece % 2 * 128) = words[piece];
          }
        }
        ptx::fence_shared_writes();  // before the products that read them
        ptx::mbarrier_arrive(full + place.stage);
        place.next(Tiles::stages);
      };
      load(carried[0], 0);
      load(carried[1], 1);
#pragma unroll 1
      for (int block = 0; block < blocks; block += 2) {
        put(carried[0], block);
        load(carried[0], block + 2);
        put(carried[1], block + 1);
        load(carried[1], block + 3);
      }
    });
  }
};

// A warp of a multiplying warpgroup, and its way through the ring.
template <class Tiles, class Codes, class Store>
struct Multiplier {
  const ManyParams<Codes, Store>& params;
  const std::uint8_t* ring;
  std::uint64_t *full, *empty;
  int warp, lane;
  std::uint64_t inputs;  // of the ring's first stage
  RingStage place;
  int before = -1;  // the stage that is not yet left

  __device__ __forceinline__ void leave() {
    __syncwarp();
    if (before >= 0 && lane == 0) ptx::mbarrier_arrive(empty + before);
  }

  // The warp's granule of an item.
  __device__ __forceinline__ void multiply(const RowGroup& group, int granule) {
    constexpr int rows = Tiles::rows;
    const BlockShape<Codes>& shape = params.weights.shape;
    const int blocks = shape.blocks();
    const BlockFactors* const factors =
        params.weights.factors +
        (static_cast<std::size_t>(group.expert) * shape.granules() + min(granule, shape.granules() - 1)) *
            static_cast<std::size_t>(shape.scale_blocks());
    float sums[rows / 2], totals[rows / 2];
    std::uint32_t a[2][2][4];  // of a block's steps in twos: decoded while the two before are multiplied
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) sums[i] = totals[i] = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2) {
      BlockFactors factor{1.0f, 1.0f};
      if constexpr (Codes::scaled) factor = factors[block / 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (block + half >= blocks) break;
        ptx::mbarrier_wait(full + place.stage, place.parity);
        __syncwarp();
        Share<Codes> share;
        share.load(ring + place.stage * Tiles::stage_bytes + warp * Codes::block_bytes, lane);
        const std::uint64_t b =
            ptx::wgmma_operand_at(inputs, static_cast<unsigned>(place.stage * Tiles::stage_bytes));
        ptx::wgmma_wait_but<1>();
        operands_of(share, 0, a[0]);
        ptx::wgmma_fence();
        ptx::wgmma_bf16(sums, a[0][0], b, half > 0);
        ptx::wgmma_bf16(sums, a[0][1], ptx::wgmma_operand_at(b, Tiles::step_bytes), true);
        ptx::wgmma_commit();
        ptx::wgmma_wait_but<1>();  // and with it all products of the stage before
        leave();
        operands_of(share, 1, a[1]);
        ptx::wgmma_fence();
        ptx::wgmma_bf16(sums, a[1][0], ptx::wgmma_operand_at(b, 2 * Tiles::step_bytes), true);
        ptx::wgmma_bf16(sums, a[1][1], ptx::wgmma_operand_at(b, 3 * Tiles::step_bytes), true);
        ptx::wgmma_commit();
        before = place.stage;
        place.next(Tiles::stages);
      }
      ptx::wgmma_wait_all(sums);
      leave();
      before = -1;
#pragma unroll
      for (int i = 0; i < rows / 2; ++i)
        totals[i] = add_block<Codes>(totals[i], sums[i], i % 4 < 2 ? factor.even : factor.odd);
    }
    if (granule >= shape.granules()) return;
    GranuleOutputs<Codes, Store>{params.weights, params.store}.write(
        group.expert, granule, totals, [&](auto& to, const auto& column) { find_rows(to, column, group); });
  }
  // All asked for before any is waited for.
  template <int columns, class Column>
  __device__ __forceinline__ void find_rows(OutputRow (&to)[columns], const Column& column,
                                            const RowGroup& group) const {
    const std::int32_t* const list = params.groups.rows + group.first;
    const bool listed = params.groups.listed != nullptr;
#pragma unroll
    for (int i = 0; i < columns; ++i) to[i] = {-1, 1.0f};
    if (listed) {
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        if (column(i) < group.count) to[i].row = list[column(i)];
      }
    } else {
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        if (column(i) < group.count) to[i].row = group.first + column(i);
      }
    }
  }

  __device__ __forceinline__ void run() {
    for_items<Tiles::rows>(
        params, [&](const RowGroup& group, int first_granule) { multiply(group, first_granule + warp); });
  }
};

template <class Tiles, class Codes, class Store>
__global__ void __launch_bounds__(many_threads, 1)
    multiply_many(const __grid_constant__ ManyParams<Codes, Store> params) {
  std::uint8_t* const ring = ptx::dynamic_shared();
  std::uint64_t* const full = reinterpret_cast<std::uint64_t*>(ring + Tiles::ring_bytes);
  std::uint64_t* const empty = full + Tiles::stages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tiles::stages; ++stage) {
      ptx::mbarrier_init(full + stage, 32 * carrying_warps + 1);
      ptx::mbarrier_init(empty + stage, product_warps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (ptx::warp_of_block() >= product_warps) {
    ptx::keep_registers<Tiles::carrying_registers>();
    Carrier<Tiles, Codes, Store> carrier{.params = params,
                                         .ring = ring,
                                         .full = full,
                                         .empty = empty,
                                         .warp = ptx::warp_of_block() - product_warps,
                                         .lane = static_cast<int>(threadIdx.x) % 32};
    if constexpr (Tiles::order == ColumnOrder::steps) {
      carrier.carry_pieces();
    } else {
      carrier.carry_quarters();
    }
  } else {
    ptx::take_registers<Tiles::product_registers>();
    Multiplier<Tiles, Codes, Store>{.params = params,
                                    .ring = ring,
                                    .full = full,
                                    .empty = empty,
                                    .warp = ptx::warp_of_block(),
                                    .lane = static_cast<int>(threadIdx.x) % 32,
                                    .inputs = ptx::wgmma_operand<256>(ring + Tiles::weight_bytes)}
        .run();
  }
}

// groups: at most.
template <int rows, ColumnOrder order, class Codes, class Store>
void launch_many_of(ManyParams<Codes, Store> params, long long groups, cudaStream_t stream) {
  using Tiles = ManyTiles<Codes, rows, order>;
  static_assert(Tiles::stages >= 3);
  const BlockShape<Codes>& shape = params.weights.shape;
  const ptx::Boxes boxes{.matrix = params.weights.data,
                         .block_bytes = Codes::block_bytes / Tiles::parts,
                         .blocks = shape.blocks() * Tiles::parts,
                         .rows = params.weights.experts * shape.granules(),
                         .box_blocks = Tiles::parts,
                         .box_rows = many_item_granules};
  params.map = ptx::box_map(boxes);
  const long long items = groups * ((shape.granules() + many_item_granules - 1) / many_item_granules);
  const long long processors = processors_of_device();
  const auto kernel = multiply_many<Tiles, Codes, Store>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tiles::shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(items < processors ? items : processors)),
                 .threads = many_threads,
                 .shared_bytes = Tiles::shared_bytes,
                 .stream = stream,
                 .overlaps = true},
                kernel, params);
}

// The groups' rows: at most 32, 64 or 128.
template <ColumnOrder order, class Codes, class Store>
void launch_many(const ManyParams<Codes, Store>& params, int rows, long long groups, cudaStream_t stream) {
  switch (rows) {
    case 32: launch_many_of<32, order>(params, groups, stream); break;
    case 64: launch_many_of<64, order>(params, groups, stream); break;
    default: launch_many_of<128, order>(params, groups, stream);
  }
}

}  // namespace nibble::block_products
