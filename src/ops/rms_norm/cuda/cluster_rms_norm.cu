// The norm of few rows after experts: a cluster of eight blocks a row, each with the share that one warp has
// where a block has a whole row (add_rms_norm.cu), in the same order.
//
// Latency is all that counts: one trip to memory, 7 KB a block, a sum from block to block, the norm. A block
// is small enough to have its place beside one of the expert layer that is not crowded (ExpertParts): of each
// quarter of a multiprocessor's 16,384 registers that one's warps leave 1,024, which are 32 for each lane of
// one warp. So it is there when the experts end, and the product behind it, which may begin once these blocks
// have their places, takes theirs at once; with 48 registers a thread all of that is lost. Each block does
// its part once before, on whatever is in memory and storing nothing, as code that a multiprocessor has to
// fetch takes three times as long.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/rms_norm/cuda/cluster_rms_norm.h"
#include "ops/rms_norm/cuda/norm_row.cuh"

namespace nibble {
namespace {

constexpr int cluster_blocks = norm_warps;
constexpr int pieces = 2 * norm_passes;  // of four columns, that a lane of the other kernel has
constexpr int cluster_threads = 32 * pieces;

// In shared memory beyond what the kernel declares, and behind it room for what is brought, float4 [1 +
// top_k, cluster_threads]: the residual's and the products'. What the blocks of a cluster tell each other
// they tell once to rehearse and once in earnest.
struct NormShared {
  float4 sums[2][cluster_blocks];  // of squares, the first of four
  float4 x[pieces][32];
};
constexpr int most_choices = 20;
constexpr std::size_t shared_bytes(int choices) {
  return sizeof(NormShared) + static_cast<std::size_t>(1 + choices) * cluster_threads * sizeof(float4);
}

// The new residual at four columns from `column` on, where the thread has some. All comes by way of shared
// memory: there are no registers for what is under way. By whole warps.
__device__ __forceinline__ float4 new_residual(const AddRmsNormCudaArgs& args, float4* brought, int row,
                                               int column) {
  const ExpertParts& experts = args.experts;
  const int hidden = args.hidden, lane = static_cast<int>(threadIdx.x) % 32;
  const bool has = column < hidden;
  std::int32_t own_id = -1;
  float own_weight = 0;
  if (lane < experts.top_k) {
    own_id = __ldcg(experts.expert_ids + row * experts.top_k + lane);
    own_weight = __ldcg(experts.expert_weights + row * experts.top_k + lane);
  }
  if (has) {
    const auto row_of = [&](const float* from, int index) {
      return from + static_cast<std::size_t>(index) * static_cast<std::size_t>(hidden) + column;
    };
    ptx::copy_to_shared(brought, row_of(args.residual, row));
    const float* from = row_of(experts.products, row * experts.top_k);
#pragma unroll 1
    for (int i = 1; i <= experts.top_k; ++i, from += hidden)
      ptx::copy_to_shared(brought + i * cluster_threads, from);
  }
  ptx::await_copies_to_shared();
  ExpertSum<float4> sum;
#pragma unroll 1
  for (int i = 0; i < experts.top_k; ++i) {
    const std::int32_t id = __shfl_sync(0xffffffffu, own_id, i);
    const float weight = __shfl_sync(0xffffffffu, own_weight, i);
    if (has) sum.add_product(id, weight, brought[(1 + i) * cluster_threads]);
  }
  return has ? add(*brought, sum.sum) : float4{};
}

// 16 blocks of 128 threads have 32 registers each.
__global__ void __launch_bounds__(cluster_threads, 16)
    cluster_rms_norm(const __grid_constant__ AddRmsNormCudaArgs args) {
  __shared__ std::uint64_t barriers[2];
  NormShared& shared = *reinterpret_cast<NormShared*>(ptx::dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, piece = thread / 32;
  float4* const brought = reinterpret_cast<float4*>(&shared + 1) + thread;
  const int rank = ptx::cluster_rank(), row = static_cast<int>(blockIdx.x) / cluster_blocks;
  if (thread == 0) {
    for (std::uint64_t& barrier : barriers) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
    for (std::uint64_t& barrier : barriers)
      ptx::mbarrier_arrive_expecting(&barrier, cluster_blocks * sizeof(float4));
  }
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const int hidden = args.hidden, blocks = DenseShape{0, hidden}.blocks();
  const int column = piece / 2 * norm_pass_columns + (rank * 32 + lane) * 8 + piece % 2 * 4;
  const bool has = column < hidden;
  uint2 weights = make_uint2(0, 0);
  if (has) weights = *reinterpret_cast<const uint2*>(args.weight + column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    if (rehearsal == 0) ptx::grid_dependency_wait();
    const float4 four = new_residual(args, brought, row, column);
    if (has) shared.x[piece][lane] = four;
    __syncthreads();  // the block's part of the row is there
    if (piece == 0) {
      float own = 0;
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
        if (i / 2 * norm_pass_columns + (rank * 32 + lane) * 8 < hidden)
          own = squares(own, shared.x[i][lane]);
      }
      own = sum_of_warp(own);
      if (lane < cluster_blocks)
        ptx::store_to_block(&shared.sums[rehearsal][rank], make_float4(own, 0, 0, 0), &barriers[rehearsal],
                            lane);
      __syncwarp();
    }
    ptx::mbarrier_wait(&barriers[rehearsal], 0);
    float of_warp[norm_warps];
#pragma unroll
    for (int warp = 0; warp < norm_warps; ++warp) of_warp[warp] = shared.sums[rehearsal][warp].x;
    const float scale = norm_scale(of_warp, hidden, args.eps);
    if (rehearsal != 0) {
      __syncthreads();  // x has been read
      continue;
    }
    const uint2 words =
        has ? make_uint2(scaled_pair(four.x, four.y, scale, weights.x, centre_of(args.weight_less_one)),
                         scaled_pair(four.z, four.w, scale, weights.y, centre_of(args.weight_less_one)))
            : make_uint2(0, 0);
    if (has)
      *reinterpret_cast<float4*>(args.residual_out +
                                 static_cast<std::size_t>(row) * static_cast<std::size_t>(hidden) + column) =
          four;
    if (args.out != nullptr && column < args.out_stride)
      *reinterpret_cast<uint2*>(
          args.out + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.out_stride) + column) =
          words;
    if (args.out_tiles != nullptr && column < blocks * dense_k)
      *reinterpret_cast<uint2*>(args.out_tiles + token_offset(blocks, row, column)) = words;
  }
}

}  // namespace

static_assert(shared_bytes(most_choices) <= 47 * 1024);  // that a block has without asking for more

bool clusters_norm(const AddRmsNormCudaArgs& args) {
  const int columns =
      std::max(DenseShape{0, args.hidden}.padded_cols(), args.out == nullptr ? 0 : args.out_stride);
  return args.experts.products != nullptr && !args.experts.crowded && args.rows <= cluster_norm_rows &&
         columns <= norm_passes * norm_pass_columns && args.experts.top_k <= most_choices;
}

void launch_cluster_norm(const AddRmsNormCudaArgs& args, cudaStream_t stream) {
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows * cluster_blocks)),
                 .threads = cluster_threads,
                 .shared_bytes = shared_bytes(args.experts.top_k),
                 .stream = stream,
                 .overlaps = true,
                 .cluster = cluster_blocks,
                 .share = share_of(args.rows)},
                cluster_rms_norm, args);
}

}  // namespace nibble
