// What the kernels with a cluster of eight blocks a row share: the block has the columns of one warp where a
// block has a whole row (norm_row.cuh), 256 side by side in each pass, a thread four of them, neighbours side
// by side so that stores to peers fill whole lines. Sums of squares go from block to block.
#pragma once

#include "ops/all_reduce_norm/cuda/peer_norm_row.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"

namespace nibble {

inline constexpr int peer_cluster_blocks = norm_warps;
inline constexpr int columns_of_warp = 32 * 8;  // in a pass
inline constexpr int threads_of_pass = columns_of_warp / 4;
inline constexpr int peer_cluster_threads = norm_passes * threads_of_pass;

// In shared memory beyond what the kernel declares.
struct PeerClusterShared {
  float4 sums[peer_cluster_blocks];  // of squares, the first of four
  float x[norm_passes][columns_of_warp];
};

struct ClusterPlace {
  int block, row, pass, in_pass, column;
};
__device__ __forceinline__ ClusterPlace cluster_place() {
  const int thread = static_cast<int>(threadIdx.x), block = ptx::cluster_rank();
  const int pass = thread / threads_of_pass, in_pass = thread % threads_of_pass * 4;
  return {block, static_cast<int>(blockIdx.x) / peer_cluster_blocks, pass, in_pass,
          pass * norm_pass_columns + block * columns_of_warp + in_pass};
}

// `norms`: the block will ask for cluster_scale.
__device__ __forceinline__ void init_cluster_barrier(std::uint64_t* barrier, bool norms) {
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(barrier, 1);
  ptx::fence_mbarrier_init();
  if (norms) ptx::mbarrier_arrive_expecting(barrier, peer_cluster_blocks * sizeof(float4));
}

// The row's scale, from each thread's four columns (nothing past the row's end).
__device__ __forceinline__ float cluster_scale(PeerClusterShared& shared, std::uint64_t* barrier,
                                               const ClusterPlace& at, int hidden, float eps,
                                               const float4& four) {
  *reinterpret_cast<float4*>(&shared.x[at.pass][at.in_pass]) = four;
  __syncthreads();  // the block's part of the row is there
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    float own = 0;
#pragma unroll
    for (int pass = 0; pass < norm_passes; ++pass) {
      // Eight columns, or none: widths are multiples of eight.
      if (pass * norm_pass_columns + at.block * columns_of_warp + lane * 8 < hidden)
        own = squares(own, eight_of_shared(&shared.x[pass][lane * 8]));
    }
    own = sum_of_warp(own);
    if (lane < peer_cluster_blocks)
      ptx::store_to_block(&shared.sums[at.block], make_float4(own, 0, 0, 0), barrier, lane);
    __syncwarp();
  }
  ptx::mbarrier_wait(barrier, 0);
  float of_warp[norm_warps];
#pragma unroll
  for (int warp = 0; warp < norm_warps; ++warp) of_warp[warp] = shared.sums[warp].x;
  return norm_scale(of_warp, hidden, eps);
}

// The norm of four columns.
__device__ __forceinline__ uint2 weighted_four(const float4& four, float scale, const uint2& weights,
                                               bool less_one) {
  return make_uint2(weighted_pair(four.x, four.y, scale, weights.x, less_one),
                    weighted_pair(four.z, four.w, scale, weights.y, less_one));
}

// Four columns of a row from all members' parts in this member's window, armed again; the residual takes them
// in.
template <int members>
__device__ __forceinline__ float4 take_four(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                                            std::uint32_t step, const ClusterPlace& at) {
  const std::size_t in_row = row_begin(args, at.row) + static_cast<std::size_t>(at.column);
  float4 before = make_float4(0, 0, 0, 0);
  if (args.residual != nullptr) before = __ldcg(reinterpret_cast<const float4*>(args.residual + in_row));
  const auto slot = [&](int i) { return part_slot(group, group.member, step, i, at.row, at.column); };
  uint4 words[members];
  PeerWait wait(group, PeerWait::For::parts);
  await(
      words, armed_sum, slot, [](int i) { return i; }, wait, step, at.row);
#pragma unroll
  for (int i = 0; i < members; ++i) ptx::store_peer(slot(i), four_times(armed_sum));
  float4 four = tree_of<members>(words, 0);
  if (args.residual != nullptr) {
    four = add(before, four);
    *reinterpret_cast<float4*>(args.residual + in_row) = four;
  }
  return four;
}

}  // namespace nibble
