// Products with one FP8 matrix in blocks (block_matrices.h) for some rows of activations, on wgmma, with the
// bits of the kernels for few and for many. Which rows: block_paths.h.
//
// A block has one or two tiles of 64 rows of weights over the whole of K, a warpgroup each, a granule a warp:
// so totals stay in registers. Weights come before the kernels ahead have ended. The activations of a group
// of up to 64 rows come through shared memory, 128 columns a stage. If each block read all of them, the
// second-level cache would bound the product: of 64 rows of K = 2,048 a block needs 256 KB. So the blocks of
// a cluster, which have neighbouring tiles, read a share of each stage and bring it to all.
//
// What a stage of 64 rows of weights and 64 of activations takes: the tensor cores 256 cycles; shared memory
// 384, at 128 bytes a cycle; a warp 290 instructions, 112 of them to decode. A warp that has ordered products
// waits until all but the last have begun. The other tile's warp decodes meanwhile. A stage's sums are added
// when its products are done. By then the next stage's first weights are decoded.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/linear/cuda/block_outputs.cuh"
#include "ops/linear/cuda/block_paths.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble::block_products {

// rows: of a group, 32 or 64; tiles: of a block.
template <int rows_, int tiles_>
struct SomePlan {
  static constexpr int rows = rows_, tiles = tiles_, eights = rows / 8;
  static constexpr int granules = tiles * some_tile_granules, threads = 32 * (granules + 2);
  static constexpr int granule_bytes = 2 * E4m3Codes::block_bytes, eight_bytes = 2 * token_block_bytes;
  static constexpr int weight_stages = 10 / tiles, input_stages = 4;
};

template <class Plan>
struct alignas(128) SomeShared {
  std::uint8_t weights[Plan::weight_stages][Plan::granules][Plan::granule_bytes];
  std::uint8_t inputs[Plan::input_stages][Plan::eights][Plan::eight_bytes];
  // Those of inputs are empty when the warps of all blocks of the cluster have read them.
  std::uint64_t weights_full[Plan::weight_stages], weights_empty[Plan::weight_stages];
  std::uint64_t inputs_full[Plan::input_stages], inputs_empty[Plan::input_stages];

  __device__ __forceinline__ void init(int cluster) {
    for (int i = 0; i < Plan::weight_stages; ++i) {
      ptx::mbarrier_init(weights_full + i, 1);
      ptx::mbarrier_init(weights_empty + i, Plan::granules);
    }
    for (int i = 0; i < Plan::input_stages; ++i) {
      ptx::mbarrier_init(inputs_full + i, 1);
      ptx::mbarrier_init(inputs_empty + i, static_cast<std::uint32_t>(cluster * Plan::granules));
    }
    ptx::fence_mbarrier_init();
  }
};

template <class Store>
struct SomeParams {
  BlockMatrices<E4m3Codes> weights;
  TokenTiles x;
  Store store;
  int cluster;  // blocks
};

// What a cluster computes at a time: a group of rows by neighbouring tiles, as many as its blocks have.
struct SomeItem {
  int first_row, rows, first_granule;
};
// Calls visit(item), with the granule of this block's first warp, for each of the cluster's items.
template <class Plan, class Store, class Visit>
__device__ __forceinline__ void for_items(const SomeParams<Store>& params, const Visit& visit) {
  const int rank = ptx::cluster_rank(), of_cluster = params.cluster * Plan::granules;
  const int groups = (params.x.tokens + Plan::rows - 1) / Plan::rows;
  const int items = (params.weights.shape.granules() + of_cluster - 1) / of_cluster * groups;
  const int clusters = static_cast<int>(gridDim.x) / params.cluster;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x) / params.cluster; item < items; item += clusters) {
    const int first_row = item % groups * Plan::rows;
    visit(SomeItem{first_row, min(Plan::rows, params.x.tokens - first_row),
                   item / groups * of_cluster + rank * Plan::granules});
  }
}

// By a warp, lane i of which brings the block's i-th granule. Past the last one the last: nobody stores what
// becomes of it.
template <class Plan, class Store>
__device__ __forceinline__ void fetch_weights(const SomeParams<Store>& params, SomeShared<Plan>& shared) {
  const BlockShape<E4m3Codes>& shape = params.weights.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t copied_once = ptx::copied_once();
  RingStage place;
  for_items<Plan>(params, [&](const SomeItem& item) {
    const std::uint8_t* from =
        params.weights.data + static_cast<std::size_t>(min(item.first_granule + lane, shape.granules() - 1)) *
                                  shape.granule_bytes();
#pragma unroll 1
    for (int block = 0; block < shape.blocks(); block += 2, place.next(Plan::weight_stages)) {
      const std::uint32_t bytes =
          static_cast<std::uint32_t>(min(2, shape.blocks() - block) * E4m3Codes::block_bytes);
      ptx::mbarrier_wait(shared.weights_empty + place.stage, place.parity ^ 1);
      if (lane == 0)
        ptx::mbarrier_arrive_expecting(shared.weights_full + place.stage, Plan::granules * bytes);
      __syncwarp();  // bytes are announced before any come
      if (lane < Plan::granules)
        ptx::bulk_copy_once_to_shared(shared.weights[place.stage][lane], from, bytes,
                                      shared.weights_full + place.stage, copied_once);
      from += bytes;
    }
  });
}

// By a warp, lane i of which brings the i-th eight of rows if it is the block's to bring. Past the last row
// there may be anything: columns do not mix.
template <class Plan, class Store>
__device__ __forceinline__ void fetch_inputs(const SomeParams<Store>& params, SomeShared<Plan>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, blocks = params.weights.shape.blocks();
  const bool brings = lane % params.cluster == ptx::cluster_rank();
  RingStage place;
  for_items<Plan>(params, [&](const SomeItem& item) {
    const int eights = (item.rows + 7) / 8;
    const std::uint8_t* from =
        params.x.data + static_cast<std::size_t>(item.first_row / 8 + min(lane, eights - 1)) *
                            static_cast<std::size_t>(blocks) * token_block_bytes;
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2, place.next(Plan::input_stages)) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(min(2, blocks - block) * token_block_bytes);
      ptx::mbarrier_wait(shared.inputs_empty + place.stage, place.parity ^ 1);
      if (lane == 0)
        ptx::mbarrier_arrive_expecting(shared.inputs_full + place.stage,
                                       static_cast<std::uint32_t>(eights) * bytes);
      __syncwarp();  // bytes are announced before any of this block's come
      if (lane < eights && brings) {
        std::uint8_t* const to = shared.inputs[place.stage][lane];
        if (params.cluster > 1) {
          ptx::bulk_copy_to_blocks(to, from, bytes, shared.inputs_full + place.stage,
                                   (1u << params.cluster) - 1);
        } else {
          ptx::bulk_copy_to_shared(to, from, bytes, shared.inputs_full + place.stage);
        }
      }
      from += bytes;
    }
  });
}

// A warp of a multiplying warpgroup.
template <class Plan, class Store>
struct SomeMultiplier {
  static constexpr int count = Plan::rows / 2;  // of a thread's sums
  const SomeParams<Store>& params;
  SomeShared<Plan>& shared;
  int warp, lane;
  RingStage weights_at, inputs_at;
  Share<E4m3Codes> share;  // of a k64 block, of whose first two steps a[0] holds the operands
  // Of a k64 block's steps in twos: decoded while the two before are multiplied.
  std::uint32_t a[2][2][4];

  __device__ __forceinline__ void begin_block(int half) {
    share.load(shared.weights[weights_at.stage][warp] + half * E4m3Codes::block_bytes, lane);
    operands_of(share, 0, a[0]);
  }
  __device__ __forceinline__ void begin_stage() {
    ptx::mbarrier_wait(shared.weights_full + weights_at.stage, weights_at.parity);
    __syncwarp();
    begin_block(0);
  }
  // A k64 block that has begun. begin_next: once its first products are done.
  template <class BeginNext>
  __device__ __forceinline__ void multiply(float (&sums)[count], std::uint64_t b, bool add,
                                           const BeginNext& begin_next) {
    constexpr unsigned step = token_step_bytes;
    ptx::wgmma_fence();
    ptx::wgmma_bf16(sums, a[0][0], b, add);
    ptx::wgmma_bf16(sums, a[0][1], ptx::wgmma_operand_at(b, step), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait_but<1>();
    operands_of(share, 1, a[1]);
    ptx::wgmma_fence();
    ptx::wgmma_bf16(sums, a[1][0], ptx::wgmma_operand_at(b, 2 * step), true);
    ptx::wgmma_bf16(sums, a[1][1], ptx::wgmma_operand_at(b, 3 * step), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait_but<1>();
    begin_next();
  }
  __device__ __forceinline__ void leave_weights() {
    ptx::await_loads(share.piece[0].x ^ share.piece[1].x);
    __syncwarp();  // all lanes have theirs
    if (lane == 0) ptx::mbarrier_arrive(shared.weights_empty + weights_at.stage);
    weights_at.next(Plan::weight_stages);
  }
  __device__ __forceinline__ void leave_inputs() {
    __syncwarp();  // the products of all lanes are done
    if (lane < params.cluster) ptx::mbarrier_arrive_at(shared.inputs_empty + inputs_at.stage, lane);
    inputs_at.next(Plan::input_stages);
  }

  __device__ __forceinline__ void run(const SomeItem& item) {
    const BlockShape<E4m3Codes>& shape = params.weights.shape;
    const int granule = item.first_granule + warp, blocks = shape.blocks();
    const BlockFactors* const factors =
        params.weights.factors + static_cast<std::size_t>(min(granule, shape.granules() - 1)) *
                                     static_cast<std::size_t>(shape.scale_blocks());
    float sums[count], totals[count];
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = totals[i] = 0;
    begin_stage();
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2) {
      const BlockFactors factor = factors[block / 2];
      ptx::mbarrier_wait(shared.inputs_full + inputs_at.stage, inputs_at.parity);
      __syncwarp();
      const std::uint64_t b = ptx::wgmma_operand<Plan::eight_bytes>(shared.inputs[inputs_at.stage]);
      const auto begin_next_stage = [&] {
        leave_weights();
        if (block + 2 < blocks) begin_stage();
      };
      if (block + 1 < blocks) {
        multiply(sums, b, false, [&] { begin_block(1); });
        multiply(sums, ptx::wgmma_operand_at(b, token_block_bytes), true, begin_next_stage);
      } else {
        multiply(sums, b, false, begin_next_stage);
      }
      ptx::wgmma_wait_all(sums);
      leave_inputs();
#pragma unroll
      for (int i = 0; i < count; ++i)
        totals[i] = add_block<E4m3Codes>(totals[i], sums[i], i % 4 < 2 ? factor.even : factor.odd);
    }
    if (granule >= shape.granules()) return;
    GranuleOutputs<E4m3Codes, Store>{params.weights, params.store}.write(
        0, granule, totals, [&](auto& to, const auto& column) {
#pragma unroll
          for (int i = 0; i < count / 2; ++i)
            to[i] = {column(i) < item.rows ? item.first_row + column(i) : -1, 1.0f};
        });
  }
};

template <class Plan, class Store>
__global__ void __launch_bounds__(Plan::threads, 1)
    multiply_some(const __grid_constant__ SomeParams<Store> params) {
  auto& shared = *reinterpret_cast<SomeShared<Plan>*>(ptx::dynamic_shared());
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == 0) shared.init(params.cluster);
  __syncthreads();  // the barriers are ready
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  ptx::cluster_wait();  // so are the other blocks'
  if (warp < Plan::granules) {
    SomeMultiplier<Plan, Store> multiplier{
        .params = params, .shared = shared, .warp = warp, .lane = static_cast<int>(threadIdx.x) % 32};
    for_items<Plan>(params, [&](const SomeItem& item) { multiplier.run(item); });
  } else if (warp == Plan::granules) {
    ptx::grid_dependency_wait();
    fetch_inputs(params, shared);
  } else {
    fetch_weights(params, shared);
  }
  __syncwarp();
  ptx::cluster_barrier();  // nobody copies or arrives here any more
}

template <class Plan, class Store>
void launch_some_of(SomeParams<Store> params, cudaStream_t stream) {
  const auto kernel = multiply_some<Plan, Store>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(SomeShared<Plan>))));
  const int blocks = (params.weights.shape.granules() + Plan::granules - 1) / Plan::granules;
  const int groups = (params.x.tokens + Plan::rows - 1) / Plan::rows;
  Launch launch{.threads = Plan::threads,
                .shared_bytes = sizeof(SomeShared<Plan>),
                .stream = stream,
                .overlaps = true,
                .share = share_of(params.x.tokens)};
  // The widest clusters that have a tile for each block, and of which the device runs some.
  int at_once = processors_of_device();
  params.cluster = 1;
  for (const int cluster : {4, 2}) {
    launch.cluster = cluster;
    launch.blocks = dim3(static_cast<unsigned>(cluster));
    const int of_these = blocks >= cluster ? clusters_at_once(launch, kernel) : 0;
    if (of_these == 0) continue;
    at_once = of_these;
    params.cluster = cluster;
    break;
  }
  launch.cluster = params.cluster;
  const int items = (blocks + params.cluster - 1) / params.cluster * groups;
  launch.blocks = dim3(static_cast<unsigned>(std::min(items, at_once) * params.cluster));
  launch_kernel(launch, kernel, params);
}

template <int rows, class Store>
void launch_some_rows(const SomeParams<Store>& params, cudaStream_t stream) {
  if (some_tiles_of(params.weights.shape.granules(), processors_of_device()) > 1) {
    launch_some_of<SomePlan<rows, 2>>(params, stream);
  } else {
    launch_some_of<SomePlan<rows, 1>>(params, stream);
  }
}

template <class Store>
void launch_some(const SomeParams<Store>& params, cudaStream_t stream) {
  if (params.x.tokens <= 32) return launch_some_rows<32>(params, stream);
  launch_some_rows<some_rows>(params, stream);
}

}  // namespace nibble::block_products
