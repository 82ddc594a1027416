// Norm, router and choice of experts for 2 to 128 rows.
//
// A cluster of eight blocks has one or two groups of 8 rows, the columns of a tensor-core product: block i
// has the norm and the choice of row i of each group, and the i-th of K's chunks for all experts. What a
// block has for another it stores there: of its norms each chunk's columns, as operands, and of its sums each
// row's. Nothing passes through memory but what the arguments ask for.
//
// Bytes: a router of 737 KB a cluster for gpt-oss-120b, 92 to 98 KB a block, of which one at a time fits a
// multiprocessor; from 65 rows on clusters have two groups, so that eight of them, which surely run at once,
// do for 128 rows, and the router is read as often as for 64. A row takes 23 KB and leaves 17. Latency: one
// trip to memory, the norm, a trip through the cluster, a chain of 24 products, another such trip, the
// choice.
#include "ops/cuda/launch.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "ops/router/cuda/norm_router_some.h"
#include "ops/router/cuda/route_row.cuh"
#include "ops/router/cuda/route_sigmoid_row.cuh"

namespace nibble {
namespace {

constexpr int cluster_blocks = dense_k_chunks;
static_assert(cluster_blocks == token_group, "a block has a chunk, and a row of a group");
constexpr int group_warps = norm_warps;
constexpr int most_groups = 2;              // of a cluster
constexpr int one_group_rows = 64;          // up to which a cluster has one
constexpr int granule_bytes = 16 * 16 * 2;  // 16 operand rows of a tile's k16 step
constexpr int granules_of_tile = dense_tile_rows / 16;
constexpr int granule_quads = 4;  // of a row: experts 2i, 2i + 1 of the granule's eight, and those 32 further

NIBBLE_HOST_DEVICE constexpr int groups_of_cluster(int rows) { return rows > one_group_rows ? 2 : 1; }
NIBBLE_HOST_DEVICE constexpr int quads_of(const DenseShape& router) {
  return router.tiles() * granules_of_tile * granule_quads;
}
// k16 steps of the longest chunk.
NIBBLE_HOST_DEVICE constexpr int most_steps(const DenseShape& router) {
  return 4 * ((router.blocks() + dense_k_chunks - 1) / dense_k_chunks);
}
// The chunk that has a column.
__device__ __forceinline__ int chunk_of(const DenseShape& router, int column) {
  return ((column / dense_k + 1) * dense_k_chunks - 1) / router.blocks();
}

// Shared memory beyond what the kernel declares, the same places in all blocks.
struct SomePlaces {
  std::uint8_t* weights;   // [tiles, steps, dense_step_bytes], of the block's chunk
  std::uint8_t* operands;  // [groups, most_steps, token_step_bytes]
  float4* sums;            // [groups, chunks, quads], of the block's rows
  float* logits;           // [groups, experts]
  float* choices;          // [groups, experts], SigmoidRow's

  __device__ SomePlaces(std::uint8_t* from, const DenseShape& router, int groups) {
    operands = from;
    sums = reinterpret_cast<float4*>(operands + groups * most_steps(router) * token_step_bytes);
    weights = reinterpret_cast<std::uint8_t*>(sums + groups * dense_k_chunks * quads_of(router));
    logits = reinterpret_cast<float*>(weights + router.tiles() * most_steps(router) * dense_step_bytes);
    choices = logits + groups * router.rows;
  }
  static constexpr int bytes(const DenseShape& router, int groups) {
    return groups * (most_steps(router) * token_step_bytes + dense_k_chunks * quads_of(router) * 16 +
                     router.rows * (4 + 4)) +
           router.tiles() * most_steps(router) * dense_step_bytes;
  }
};

struct SomeBarriers {
  std::uint64_t weights, operands, sums;
};

// What a block does, and a warp of it: those of group i have the i-th eight of its warps.
struct SomeWork {
  int rank;        // the block's place in the cluster
  int begin, end;  // its chunk's k64 blocks
  int first_row, rows, groups;
  int group, warp;  // of this thread, and of the group's

  __device__ SomeWork(const NormRouterCudaArgs& args) {
    rank = ptx::cluster_rank();
    begin = args.router.shape.chunk_begin(rank);
    end = args.router.shape.chunk_begin(rank + 1);
    groups = groups_of_cluster(args.rows);
    first_row = static_cast<int>(blockIdx.x) / cluster_blocks * groups * token_group;
    rows = min(args.rows - first_row, groups * token_group);
    const int warp_of_all = ptx::warp_of_block();
    group = warp_of_all / group_warps;
    warp = warp_of_all % group_warps;
  }
  __device__ int own_row() const { return group * token_group + rank; }
  // Of the block's rows, one a group, those that there are.
  __device__ int own_rows() const { return (max(rows - rank, 0) + token_group - 1) / token_group; }
  __device__ int steps() const { return 4 * (end - begin); }
};

// By one thread: what the block waits for, and its chunk of the router.
__device__ __forceinline__ void begin_barriers(const NormRouterCudaArgs& args, const SomeWork& work,
                                               const SomePlaces& places, SomeBarriers& barriers) {
  const DenseShape& shape = args.router.shape;
  ptx::mbarrier_init(&barriers.weights, 1);
  ptx::mbarrier_init(&barriers.operands, 1);
  ptx::mbarrier_init(&barriers.sums, 1);
  ptx::fence_mbarrier_init();
  ptx::mbarrier_arrive_expecting(
      &barriers.operands,
      static_cast<std::uint32_t>(work.rows * work.steps() * (token_step_bytes / token_group)));
  ptx::mbarrier_arrive_expecting(
      &barriers.sums, static_cast<std::uint32_t>(work.own_rows() * dense_k_chunks * quads_of(shape) * 16));
  const int bytes = work.steps() * dense_step_bytes;
  ptx::mbarrier_arrive_expecting(&barriers.weights, static_cast<std::uint32_t>(shape.tiles() * bytes));
  if (bytes == 0) return;
  for (int tile = 0; tile < shape.tiles(); ++tile) {
    ptx::bulk_copy_to_shared(places.weights + tile * bytes,
                             args.router.data + static_cast<std::size_t>(tile) * shape.tile_bytes() +
                                 static_cast<std::size_t>(work.begin) * dense_block_bytes,
                             static_cast<std::uint32_t>(bytes), &barriers.weights);
  }
}

// What a thread needs for its columns of a norm besides the row.
struct Columns {
  uint4 weights[norm_passes] = {};
  int chunk[norm_passes];         // that has them
  float4* operands[norm_passes];  // where they lie in that block

  __device__ __forceinline__ Columns(const NormRouterCudaArgs& args, const SomeWork& work,
                                     const SomePlaces& places) {
    const DenseShape& shape = args.router.shape;
#pragma unroll
    for (int pass = 0; pass < norm_passes; ++pass) {
      const int column = at(pass);
      if (column < shape.cols) weights[pass] = *reinterpret_cast<const uint4*>(args.norm_weight + column);
      const int of = chunk_of(shape, column);
      std::uint8_t* const row =
          places.operands + work.group * most_steps(shape) * token_step_bytes + work.rank * 16;
      chunk[pass] = ptx::held(of);
      operands[pass] = ptx::held(
          reinterpret_cast<float4*>(row + token_offset(0, 0, column - shape.chunk_begin(of) * dense_k)));
    }
  }
  __device__ static int at(int pass) {
    return static_cast<int>(threadIdx.x) % norm_threads * 8 + pass * norm_pass_columns;
  }
};

// The rows' norms, each by the eight warps of a group: to the blocks whose chunks its columns are, and to
// memory.
__device__ __forceinline__ void norm_row(const NormRouterCudaArgs& args, const SomeWork& work,
                                         const Columns& columns, SomeBarriers& barriers,
                                         float (&of_warp)[norm_warps]) {
  const DenseShape& shape = args.router.shape;
  const int hidden = shape.cols;
  const bool has_row = work.own_row() < work.rows;
  const std::size_t row = static_cast<std::size_t>(work.first_row + (has_row ? work.own_row() : 0)),
                    at = row * static_cast<std::size_t>(hidden);
  Eight eight[norm_passes] = {}, delta[norm_passes] = {};
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = columns.at(pass);
    if (!has_row || column >= hidden) continue;
    eight[pass] = load_eight(args.residual + at + static_cast<std::size_t>(column));
    delta[pass] = load_eight(args.delta + at + static_cast<std::size_t>(column));
  }
  ptx::cluster_wait();  // the other blocks' barriers are ready
  if (!has_row) return;
  float own = 0;
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    if (columns.at(pass) >= hidden) continue;
    eight[pass] = add(eight[pass], delta[pass]);
    own = squares(own, eight[pass]);
  }
  own = sum_of_warp(own);
  if (threadIdx.x % 32 == 0) of_warp[work.warp] = own;
  ptx::named_barrier(1 + work.group, norm_threads);  // every warp's sum is there
  const float scale = norm_scale(of_warp, hidden, args.eps);
  uint4 words[norm_passes] = {};
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = columns.at(pass);
    if (column >= shape.padded_cols()) continue;
    if (column < hidden)
      words[pass] = scaled(eight[pass], scale, columns.weights[pass], centre_of(args.weight_less_one));
    ptx::store_to_block(columns.operands[pass],
                        make_float4(__uint_as_float(words[pass].x), __uint_as_float(words[pass].y),
                                    __uint_as_float(words[pass].z), __uint_as_float(words[pass].w)),
                        &barriers.operands, columns.chunk[pass]);
  }
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = columns.at(pass);
    if (column < shape.padded_cols()) {
      *reinterpret_cast<uint4*>(args.norm + row * static_cast<std::size_t>(args.norm_stride) + column) =
          words[pass];
      if (args.norm_tiles != nullptr) {
        *reinterpret_cast<uint4*>(args.norm_tiles +
                                  token_offset(shape.blocks(), static_cast<int>(row), column)) = words[pass];
      }
    }
    if (column < hidden) store_eight(args.residual_out + at + static_cast<std::size_t>(column), eight[pass]);
  }
}

// A lane's operands of a k64 block: of 16 experts, and of a group's rows.
struct BlockOperands {
  std::uint32_t a[4][4], b[2][4];

  __device__ __forceinline__ void load(const std::uint8_t* a_row, const std::uint8_t* b_row) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t(&of)[4] = a[step];
      ptx::load_matrices(of[0], of[1], of[2], of[3], a_row + step * dense_step_bytes);
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      std::uint32_t(&of)[4] = b[pair];
      ptx::load_matrices(of[0], of[1], of[2], of[3], b_row + pair * 2 * token_step_bytes);
    }
  }
};

// A chunk's k64 blocks of 16 experts x a group's 8 rows: lane (g, t) gets experts g and g + 8, rows 2t and
// 2t + 1.
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], int blocks, const std::uint8_t* weights,
                                               const std::uint8_t* operands) {
  if (blocks == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  // Groups of 8 operand rows lie 256 bytes apart, their halves of K 128.
  const std::uint8_t* a_row = weights + matrix % 2 * 256 + matrix / 2 * 128 + row * 16;
  const std::uint8_t* b_row = operands + matrix * 128 + row * 16;
  BlockOperands now;
  now.load(a_row, b_row);
#pragma unroll 2
  for (int block = 1; block <= blocks; ++block) {
    // The next block's are on their way while these are multiplied, which is one chain.
    BlockOperands next;
    const int then = min(block, blocks - 1);
    next.load(a_row + then * dense_block_bytes, b_row + then * token_block_bytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t(&of)[4] = now.a[step];
      ptx::mma_m16n8k16_bf16(sums, of[0], of[1], of[2], of[3], now.b[step / 2][step % 2 * 2],
                             now.b[step / 2][step % 2 * 2 + 1]);
    }
    now = next;
  }
}

// This warp's experts, for the rows of its group, to the blocks that choose for them.
__device__ __forceinline__ void multiply(const NormRouterCudaArgs& args, const SomeWork& work,
                                         const SomePlaces& places, SomeBarriers& barriers) {
  const DenseShape& shape = args.router.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  const bool odd = g % 2 != 0;
  const int row = lane % 4 * 2 + (odd ? 1 : 0);
#pragma unroll 1
  for (int granule = work.warp; granule < shape.tiles() * granules_of_tile; granule += group_warps) {
    float sums[4] = {0, 0, 0, 0};
    multiply_chunk(sums, work.end - work.begin,
                   places.weights + granule / granules_of_tile * work.steps() * dense_step_bytes +
                       granule % granules_of_tile * granule_bytes,
                   places.operands + work.group * most_steps(shape) * token_step_bytes);
    // Neighbours in g have each other's experts of two rows: one takes the first row, one the second.
    const float low = __shfl_xor_sync(0xffffffffu, odd ? sums[0] : sums[1], 4),
                high = __shfl_xor_sync(0xffffffffu, odd ? sums[2] : sums[3], 4);
    if (work.group * token_group + row >= work.rows) continue;
    ptx::store_to_block(
        places.sums + (work.group * dense_k_chunks + work.rank) * quads_of(shape) + granule * granule_quads +
            g / 2,
        odd ? make_float4(low, sums[1], high, sums[3]) : make_float4(sums[0], low, sums[2], high),
        &barriers.sums, row);
  }
}

// By one warp, for its group's row of this block.
template <bool by_sigmoid>
__device__ __forceinline__ void choose(const NormRouterCudaArgs& args, const SomeWork& work,
                                       const SomePlaces& places, SomeBarriers& barriers) {
  const DenseShape& shape = args.router.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = shape.rows, quads = quads_of(shape);
  const int row = work.first_row + work.own_row();
  const bool counts = args.row_limit == nullptr || row < *args.row_limit;
  float* const logits = places.logits + work.group * experts;
#pragma unroll 1
  for (int quad = lane; quad < quads; quad += 32) {
    const int granule = quad / granule_quads;
    const int first = granule / granules_of_tile * dense_tile_rows + granule % granules_of_tile * 8 +
                      quad % granule_quads * 2;
    Bf16 bias[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int expert = first + i / 2 * 32 + i % 2;
      if (args.router_bias != nullptr && expert < experts) bias[i] = args.router_bias[expert];
    }
    ptx::mbarrier_wait(&barriers.sums, 0);
    float4 total;
#pragma unroll
    for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
      const float4 left = places.sums[(work.group * dense_k_chunks + chunk) * quads + quad];
      total = chunk == 0 ? left : add(total, left);
    }
    const float totals[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int expert = first + i / 2 * 32 + i % 2;
      if (expert >= experts) continue;
      logits[expert] = args.router_bias == nullptr ? totals[i] : totals[i] + bias[i].to_float();
    }
  }
  __syncwarp();  // each lane's logits are there
  const std::size_t chosen = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.top_k);
  if (!counts) {
    if (lane < args.top_k) args.expert_ids[chosen + static_cast<std::size_t>(lane)] = no_expert;
    return;
  }
  if constexpr (by_sigmoid) {
    route_sigmoid_row(*args.sigmoid, {logits, places.choices + work.group * experts, experts, args.top_k},
                      args.expert_ids + chosen, args.expert_weights + chosen);
  } else {
    route_row(logits, {experts, args.top_k, args.of_all}, args.expert_ids + chosen,
              args.expert_weights + chosen);
  }
}

template <bool by_sigmoid>
__global__ void __launch_bounds__(most_groups* norm_threads, 1)
    norm_router_some(const __grid_constant__ NormRouterCudaArgs args) {
  __shared__ SomeBarriers barriers;
  __shared__ float of_warp[most_groups][norm_warps];
  const DenseShape& shape = args.router.shape;
  const SomeWork work(args);
  const SomePlaces places(ptx::dynamic_shared(), shape, work.groups);
  if (threadIdx.x == 0) begin_barriers(args, work, places, barriers);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const Columns columns(args, work, places);
  ptx::grid_dependency_wait();
  norm_row(args, work, columns, barriers, of_warp[work.group]);
  ptx::mbarrier_wait(&barriers.weights, 0);
  ptx::mbarrier_wait(&barriers.operands, 0);
  __syncwarp();  // lanes multiply together
  multiply(args, work, places, barriers);
  // Blocks that choose end when all sums have come, the others get none; and all have waited for operands.
  if (work.own_row() < work.rows && work.warp == 0) choose<by_sigmoid>(args, work, places, barriers);
}

}  // namespace

bool norm_router_some_takes(const DenseShape& router) {
  constexpr int most_shared = 192 * 1024;
  return router.cols <= norm_passes * norm_pass_columns &&
         SomePlaces::bytes(router, most_groups) <= most_shared;
}

void launch_norm_router_some(const NormRouterCudaArgs& args, cudaStream_t stream) {
  const int groups = groups_of_cluster(args.rows), rows = groups * token_group;
  const int bytes = SomePlaces::bytes(args.router.shape, groups);
  const auto kernel = args.sigmoid ? norm_router_some<true> : norm_router_some<false>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int clusters = (args.rows + rows - 1) / rows;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(clusters * cluster_blocks)),
                 .threads = groups * norm_threads,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true,
                 .cluster = cluster_blocks,
                 .share = share_of(args.rows)},
                kernel, args);
}

}  // namespace nibble
