// Products with matrices in FP8 (block_matrices.h) and rows rounded to FP8 (rounded_rows.h), on the FP8
// tensor cores: groups of up to 128 rows of one expert each, or of one matrix.
//
// Order of additions, an op's contract: that of block_matrices.h, where T_b is the FP8 tensor core's chain
// over the block's four k32 steps from zero; past the end of K are zeros. The row of weights' scale, where it
// has one, multiplies the total in one rounding; then the scale of the row of activations, a power of two. A
// row's bits depend on nothing else. They are not those of the products with bfloat16 rows: that tensor core
// adds with fewer bits.
//
// A block a multiprocessor takes items of 128 rows of weights and a group, of which neighbours share the
// group. Two warpgroups multiply, a granule a warp, whose codes come to registers while the products of the
// block before run. The sums of half of the rows are added to the totals while products of the other half
// run. A third warpgroup brings 128 columns a stage of a ring: one thread orders weights, a box of eight
// granules, and all ask for activations, a row of 128 bytes after the other, as wgmma reads them
// (ops/ptx/warpgroup_swizzled.cuh). With an item's first columns it leaves in shared memory which rows of
// outputs the item has, and their scales.
//
// 128 columns of 128 rows of weights and of activations take the tensor cores 512 cycles, and shared memory
// at 128 bytes a cycle 640: 256 for activations read by both warpgroups, 128 each for these and for weights
// to come, and 128 for weights to be read.
#pragma once

#include <iterator>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/linear/cuda/block_outputs.cuh"
#include "ops/linear/cuda/rounded_rows.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/copy_groups.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup_e4m3.cuh"
#include "ops/ptx/warpgroup_registers.cuh"

namespace nibble::rounded_products {

using namespace block_products;

inline constexpr int item_granules = 8;  // a warp each
inline constexpr int product_warps = item_granules, carrying_warps = 4;
inline constexpr int threads = 32 * (product_warps + carrying_warps);
inline constexpr int carrying_registers = 56, product_registers = 224;

template <int rows_>
struct Tiles {
  static constexpr int rows = rows_;  // of activations in a group: 32, 64 or 128
  static constexpr int granule_bytes = 2 * E4m3Codes::block_bytes;
  static constexpr int weight_bytes = item_granules * granule_bytes;
  static constexpr int input_bytes = rows * ptx::swizzled_row_bytes;
  static constexpr int stage_bytes = input_bytes + weight_bytes;  // multiples of 1,024
  static constexpr int most_stages = 8, ring_limit = 200 * 1024;
  static constexpr int stages =
      ring_limit / stage_bytes < most_stages ? ring_limit / stage_bytes : most_stages;
  static constexpr int barriers_at = stages * stage_bytes;
  // Which rows of outputs an item's are. Items under way have a block each in the ring, and one is being
  // stored.
  static constexpr int item_slots = stages + 1, output_rows_at = barriers_at + 2 * stages * 8;
  static constexpr int alignment = ptx::swizzled_eight_bytes;
  static constexpr int shared_bytes =
      alignment + output_rows_at + item_slots * rows * static_cast<int>(sizeof(OutputRow));
};

template <class Store>
struct Params {
  ptx::TensorMap map;
  BlockMatrices<E4m3Codes> weights;
  RoundedRows x;  // with scales of rows of outputs
  RowGroups groups;
  int choices;  // consecutive rows of outputs that share one of inputs
  Store store;

  // Calls visit(group, first granule) for each of the block's items.
  template <int rows, class Visit>
  __device__ __forceinline__ void for_items(const Visit& visit) const {
    const int row_items = (weights.shape.granules() + item_granules - 1) / item_granules;
    const int items = groups.groups(rows) * row_items;
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
      const int group = item / row_items;
      visit(groups.at(group, rows), (item - group * row_items) * item_granules);
    }
  }
};

struct Ring {
  std::uint8_t* stages;
  std::uint64_t *full, *empty;
  OutputRow* output_rows;  // [item_slots, rows]
};

// What the carrying warps bring of each item.
template <class Tiles, class Store>
__device__ __forceinline__ void carry(const Params<Store>& params, const Ring& ring, int warp, int lane) {
  constexpr int ahead = Tiles::stages / 2;  // groups of copies under way
  constexpr int rows_at_once = 4;           // of a warp, eight lanes a row
  constexpr int turns = Tiles::rows / (carrying_warps * rows_at_once);
  const int blocks = params.weights.shape.scale_blocks(), piece = lane % 8;
  RingStage place, told, item_slot;
  int untold = 0;
  const auto tell = [&] {
    ptx::fence_shared_writes();  // before the products that read them
    ptx::mbarrier_arrive(ring.full + told.stage);
    told.next(Tiles::stages);
    --untold;
  };
  params.template for_items<Tiles::rows>([&](const RowGroup& group, int first_granule) {
    std::uint32_t from[turns];  // rows' codes, in sixteen bytes
    const unsigned row_pieces = static_cast<unsigned>(rounded_row_bytes(params.weights.shape.cols)) / 16;
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      // Past the last row the last: columns do not mix.
      const int at = min((i * carrying_warps + warp) * rows_at_once + lane / 8, group.count - 1);
      from[i] = static_cast<unsigned>(params.groups.row_of(group, at) / params.choices) * row_pieces +
                static_cast<unsigned>(piece);
    }
    const int own = warp * 32 + lane;
    OutputRow output{-1, 1.0f};
    if (own < group.count) {
      output.row = params.groups.row_of(group, own);
      output.scale = params.x.scales[output.row];
    }
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      std::uint8_t* const stage = ring.stages + place.stage * Tiles::stage_bytes;
      ptx::mbarrier_wait(ring.empty + place.stage, place.parity ^ 1);
      if (block == 0) {
        if (own < Tiles::rows) ring.output_rows[item_slot.stage * Tiles::rows + own] = output;
        item_slot.next(Tiles::item_slots);
      }
      if (warp == 0 && lane == 0) {
        ptx::mbarrier_arrive_expecting(ring.full + place.stage, Tiles::weight_bytes);
        ptx::box_copy_to_shared(stage + Tiles::input_bytes, params.map, 2 * block,
                                group.expert * params.weights.shape.granules() + first_granule,
                                ring.full + place.stage);
      }
#pragma unroll
      for (int i = 0; i < turns; ++i) {
        const int row = (i * carrying_warps + warp) * rows_at_once + lane / 8;
        ptx::copy_to_shared(stage + row * ptx::swizzled_row_bytes + (piece ^ row % 8) * 16,
                            params.x.codes + (std::size_t{from[i]} + static_cast<unsigned>(block) * 8) * 16);
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

// A warp's granule in a stage, as operands of four k32 steps: a piece each.
using Operands = std::uint32_t[4][4];
__device__ __forceinline__ void read_operands(Operands& a, const std::uint8_t* granule, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 piece = *reinterpret_cast<const uint4*>(granule + step * block_piece_bytes + lane * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[step][i] = word_of(piece, i);
  }
}

// A warp of a multiplying warpgroup, and its way through the ring.
template <class Tiles, class Store>
struct Multiplier {
  static constexpr int half_sums = Tiles::rows / 4;  // of a half of the rows
  const Params<Store>& params;
  const Ring& ring;
  int warp, lane;
  ptx::TileRows inputs;  // of the ring's first stage
  RingStage place, item_slot;

  __device__ __forceinline__ void read(Operands& a) {
    ptx::mbarrier_wait(ring.full + place.stage, place.parity);
    __syncwarp();
    read_operands(
        a, ring.stages + place.stage * Tiles::stage_bytes + Tiles::input_bytes + warp * Tiles::granule_bytes,
        lane);
  }
  // Products of a half of the rows with the operands of a stage.
  __device__ __forceinline__ void begin(float (&sums)[half_sums], const Operands& a, int stage, int half) {
    const ptx::TileRows b =
        inputs.at(static_cast<unsigned>(stage * Tiles::stage_bytes + half * Tiles::input_bytes / 2));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      ptx::wgmma_e4m3(sums, a[step], b.at(static_cast<unsigned>(step) * 32), step > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ static void add(float* totals, const float (&sums)[half_sums],
                                             const BlockFactors& factor) {
#pragma unroll
    for (int i = 0; i < half_sums; ++i)
      totals[i] = fmaf(i % 4 < 2 ? factor.even : factor.odd, sums[i], totals[i]);
  }

  // The warp's granule of an item. While the sums of one half of the rows are added to the totals, products
  // of the other half run. A block's operands are read while products of the one before run.
  __device__ __forceinline__ void multiply(const RowGroup& group, int granule) {
    const BlockShape<E4m3Codes>& shape = params.weights.shape;
    const int blocks = shape.scale_blocks();
    const BlockFactors* const factors =
        params.weights.factors +
        (static_cast<std::size_t>(group.expert) * shape.granules() + min(granule, shape.granules() - 1)) *
            static_cast<std::size_t>(blocks);
    float sums[2][half_sums], totals[2 * half_sums];
#pragma unroll
    for (int i = 0; i < half_sums; ++i) sums[0][i] = sums[1][i] = totals[i] = totals[i + half_sums] = 0;
    Operands a[2];
    BlockFactors upcoming = factors[0];
    read(a[0]);
    const auto multiply_block = [&](int block, const Operands& now, Operands& next) {
      const BlockFactors factor = upcoming;
      const int stage = place.stage;
      begin(sums[0], now, stage, 0);
      begin(sums[1], now, stage, 1);
      place.next(Tiles::stages);
      if (block + 1 < blocks) {
        upcoming = factors[block + 1];
        read(next);
      }
      ptx::wgmma_wait_but<1>(sums[0]);
      add(totals, sums[0], factor);
      ptx::wgmma_wait_but<0>(sums[1]);
      __syncwarp();  // all lanes have read the stage's weights
      if (lane == 0) ptx::mbarrier_arrive(ring.empty + stage);
      add(totals + half_sums, sums[1], factor);
    };
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2) {
      multiply_block(block, a[0], a[1]);
      if (block + 1 < blocks) multiply_block(block + 1, a[1], a[0]);
    }
    const OutputRow* const rows = ring.output_rows + item_slot.stage * Tiles::rows;
    item_slot.next(Tiles::item_slots);
    if (granule >= shape.granules()) return;
    GranuleOutputs<E4m3Codes, Store>{params.weights, params.store}.write(
        group.expert, granule, totals, [&](auto& to, const auto& column) {
#pragma unroll
          for (int i = 0; i < static_cast<int>(std::size(to)); ++i) to[i] = rows[column(i)];
        });
  }
};

template <class Tiles, class Store>
__global__ void __launch_bounds__(threads, 1) multiply_rounded(const __grid_constant__ Params<Store> params) {
  std::uint8_t* shared = ptx::dynamic_shared();
  shared += ptx::held(static_cast<int>(-reinterpret_cast<std::uintptr_t>(shared) % Tiles::alignment));
  std::uint64_t* const full = reinterpret_cast<std::uint64_t*>(shared + Tiles::barriers_at);
  const Ring ring{.stages = shared,
                  .full = full,
                  .empty = full + Tiles::stages,
                  .output_rows = reinterpret_cast<OutputRow*>(shared + Tiles::output_rows_at)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tiles::stages; ++stage) {
      ptx::mbarrier_init(ring.full + stage, 32 * carrying_warps + 1);
      ptx::mbarrier_init(ring.empty + stage, product_warps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (warp >= product_warps) {
    ptx::keep_registers<carrying_registers>();
    carry<Tiles>(params, ring, warp - product_warps, lane);
  } else {
    ptx::take_registers<product_registers>();
    Multiplier<Tiles, Store> multiplier{.params = params,
                                        .ring = ring,
                                        .warp = warp,
                                        .lane = lane,
                                        .inputs = ptx::TileRows(ring.stages),
                                        .place = {},
                                        .item_slot = {}};
    params.template for_items<Tiles::rows>(
        [&](const RowGroup& group, int first_granule) { multiplier.multiply(group, first_granule + warp); });
  }
}

// groups: at most.
template <int rows, class Store>
void launch_rounded_of(Params<Store> params, long long groups, cudaStream_t stream) {
  using Of = Tiles<rows>;
  static_assert(Of::stages >= 3 && Of::stage_bytes % 1024 == 0);
  const BlockShape<E4m3Codes>& shape = params.weights.shape;
  const ptx::Boxes boxes{.matrix = params.weights.data,
                         .block_bytes = E4m3Codes::block_bytes,
                         .blocks = shape.blocks(),
                         .rows = params.weights.experts * shape.granules(),
                         .box_blocks = 2,
                         .box_rows = item_granules};
  params.map = ptx::box_map(boxes);
  const long long items = groups * ((shape.granules() + item_granules - 1) / item_granules);
  const long long processors = processors_of_device();
  const auto kernel = multiply_rounded<Of, Store>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Of::shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(items < processors ? items : processors)),
                 .threads = threads,
                 .shared_bytes = Of::shared_bytes,
                 .stream = stream,
                 .overlaps = true},
                kernel, params);
}

// The groups' rows: at most 32, 64 or 128.
template <class Store>
void launch_rounded(const Params<Store>& params, int rows, long long groups, cudaStream_t stream) {
  switch (rows) {
    case 32: launch_rounded_of<32>(params, groups, stream); break;
    case 64: launch_rounded_of<64>(params, groups, stream); break;
    default: launch_rounded_of<128>(params, groups, stream);
  }
}

}  // namespace nibble::rounded_products
