// Products with one matrix in blocks (block_matrices.h) for up to eight rows of activations and a short
// K, at most 16 blocks of 128 columns. A longer K is block_products_long.cuh's.
//
// Each of 16 warps has one block of every granule of the grid block's, so what it does for a granule is
// always the same: wait, multiply, leave what it found, ask for the next weights. What decides the time is
// how few instructions that is besides decoding. Two warps add a granule up, others each time, while the next
// one is multiplied.
//
// A warp's ring has four granules' blocks and is filled before the kernels ahead have ended: 128 KB of FP8 a
// multiprocessor, which leaves room for a block of the launch before or behind it.
#pragma once

#include <algorithm>

#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_products_few.cuh"

namespace nibble::block_products {

inline constexpr int short_warps = 16, short_threads = 32 * short_warps;
inline constexpr int short_stages = 4;  // of a warp's ring, a granule each
inline constexpr int short_adders = 2;

template <class Codes>
struct alignas(128) ShortShared {
  static constexpr int stage_bytes = 2 * Codes::block_bytes;
  std::uint8_t ring[short_warps][short_stages][stage_bytes];
  float found[2][short_warps][4][32];  // of a granule; every other granule's
  std::uint64_t full[short_warps][short_stages];
};

template <class Codes>
bool short_takes(const BlockShape<Codes>& shape, int rows) {
  return rows <= 8 && shape.scale_blocks() <= short_warps;
}

template <class Codes, class Store>
__global__ void __launch_bounds__(short_threads, 2)
    multiply_short(const __grid_constant__ FewParams<Codes, Store> params) {
  using Shared = ShortShared<Codes>;
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const BlockShape<Codes>& shape = params.weights.shape;
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int scale_blocks = shape.scale_blocks();
  const auto border = [&](unsigned block) {
    return static_cast<int>(static_cast<unsigned>(shape.granules()) * block / gridDim.x);
  };
  const int begin = border(blockIdx.x), past = border(blockIdx.x + 1);
  const bool has = warp < scale_blocks;  // a block of 128 columns, of which the last one may have a half
  const int halves = min(2, shape.blocks() - 2 * warp);
  const std::uint32_t bytes = static_cast<std::uint32_t>(halves * Codes::block_bytes);
  std::uint8_t* const ring = shared.ring[warp][0];
  std::uint64_t* const full = shared.full[warp];
  const std::size_t granule_bytes = shape.granule_bytes();
  const std::uint8_t* from = params.weights.data + static_cast<std::size_t>(begin) * granule_bytes +
                             static_cast<std::size_t>(warp) * Shared::stage_bytes;
  int left = has ? past - begin : 0;  // of granules to ask for
  const auto fetch = [&](int stage) {
    if (left <= 0) return;
    if (ptx::elected_lane()) {
      ptx::mbarrier_arrive_expecting(full + stage, bytes);
      ptx::bulk_copy_once_to_shared(ring + stage * Shared::stage_bytes, from, bytes, full + stage);
    }
    from += granule_bytes;
    --left;
  };
  if (lane == 0) {
    for (int i = 0; i < short_stages; ++i) ptx::mbarrier_init(full + i, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  if (!params.lets_beside) ptx::grid_launch_dependents();
#pragma unroll 1
  for (int stage = 0; stage < short_stages; ++stage) fetch(stage);
  // The warp adds up every eighth granule. Lane i has the factors of block i of the next one.
  constexpr int teams = short_warps / short_adders;
  const int adder = warp % short_adders;
  int added = begin + warp / short_adders;
  BlockFactors factors{1, 1};
  RowScales scales;
  const auto read_factors = [&] {
    scales = row_scales_of(params.weights, 0, added * block_granule_rows + lane / 4 * 2);
    if (Codes::scaled && added < past && lane < scale_blocks)
      factors = params.weights
                    .factors[static_cast<std::size_t>(added) * static_cast<std::size_t>(scale_blocks) + lane];
  };
  read_factors();
  ptx::grid_dependency_wait();
  if (params.lets_beside) ptx::grid_launch_dependents();
  LaneInputs inputs[2][1];
  const std::uint8_t* const x =
      params.x.row_at(min(lane / 4, params.rows - 1));  // past the last row the last
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int block = min(2 * warp + half, shape.blocks() - 1);
    inputs[half][0].template load<column_order<Codes>>(x + static_cast<std::size_t>(block) * params.x.block,
                                                       params.x.piece, lane % 4);
  }
  const int row = lane % 4 * 2 + adder;
  __syncwarp();  // products need all lanes at once
  RingStage place;
#pragma unroll 1
  for (int granule = begin; granule < past; ++granule) {
    float(*const found)[4][32] = shared.found[(granule - begin) % 2];
    if (has) {
      const std::uint8_t* const weights = ring + place.stage * Shared::stage_bytes;
      ptx::mbarrier_wait(full + place.stage, place.parity);
      float sums[1][4] = {};
      Share<Codes> share;
      share.load(weights, lane);
      multiply_block(sums, share, inputs[0]);
      if (halves == 2) {
        share.load(weights + Codes::block_bytes, lane);
        multiply_block(sums, share, inputs[1]);
      }
#pragma unroll
      for (int of = 0; of < 4; ++of) found[warp][of][lane] = sums[0][of];
      __syncwarp();  // all lanes have read the stage
      fetch(place.stage);
      place.next(short_stages);
    }
    __syncthreads();  // the granule's sums are there, and those of the one before last have been read
    if (granule != added) continue;
    float even = 0, odd = 0;
#pragma unroll 4
    for (int block = 0; block < scale_blocks; ++block) {
      even = add_block<Codes>(even, found[block][adder][lane], __shfl_sync(0xffffffffu, factors.even, block));
      odd =
          add_block<Codes>(odd, found[block][adder + 2][lane], __shfl_sync(0xffffffffu, factors.odd, block));
    }
    if (row < params.rows)
      params.store.put(row, granule * block_granule_rows + lane / 4 * 2,
                       params.store.value(__fmul_rn(even, scales.even), __fmul_rn(odd, scales.odd)));
    added += teams;
    read_factors();
    __syncwarp();  // the next products need all lanes at once
  }
}

template <class Codes, class Store>
void launch_short(const FewParams<Codes, Store>& params, cudaStream_t stream) {
  const int processors = processors_of_device(), granules = params.weights.shape.granules();
  const auto kernel = multiply_short<Codes, Store>;
  constexpr int bytes = std::max(static_cast<int>(sizeof(ShortShared<Codes>)), shared_of_lone_block);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(granules, processors))),
                 .threads = short_threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(params.rows)},
                kernel, params);
}

}  // namespace nibble::block_products
