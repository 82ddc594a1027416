// Two-shot for a moderate number of rows: what two_shot_rows.cu does, by a cluster of eight blocks a row, a
// thread having four columns.
#include "ops/all_reduce_norm/cuda/peer_cluster_row.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

__device__ __forceinline__ uint2* four_of_row_slot(const PeerGroup& group, int holder,
                                                   const ClusterPlace& at) {
  return reinterpret_cast<uint2*>(row_slot(group, holder, at.row, at.column));
}

// Four columns of a new residual, or of a sum, from the row's owner.
__device__ __forceinline__ float4 take_four_of_owner(const PeerGroup& group,
                                                     const AllReduceNormCudaArgs& args, std::uint32_t step,
                                                     int owner, const ClusterPlace& at) {
  uint4 words[1];
  PeerWait wait(group, PeerWait::For::owner);
  const auto slot = [&](int) { return sum_slot(group, group.member, at.row, at.column); };
  await(
      words, armed_sum, slot, [&](int) { return owner; }, wait, step, at.row);
  ptx::store_peer(slot(0), four_times(armed_sum));
  const float4 four = floats_of(words[0]);
  if (args.residual != nullptr) {
    *reinterpret_cast<float4*>(args.residual + row_begin(args, at.row) +
                               static_cast<std::size_t>(at.column)) = four;
  }
  return four;
}

// Of a normed row.
__device__ __forceinline__ uint2 take_normed_four(const PeerGroup& group, std::uint32_t step, int owner,
                                                  const ClusterPlace& at) {
  uint2 words[1];
  PeerWait wait(group, PeerWait::For::owner);
  const auto slot = [&](int) { return four_of_row_slot(group, group.member, at); };
  await(
      words, armed_row, slot, [&](int) { return owner; }, wait, step, at.row);
  ptx::store_peer(slot(0), make_uint2(armed_row, armed_row));
  return words[0];
}

template <int members>
__global__ void __launch_bounds__(peer_cluster_threads, 8)
    two_shot_clusters(const __grid_constant__ PeerGroup group,
                      const __grid_constant__ AllReduceNormCudaArgs args, const bool sums_go_back) {
  __shared__ std::uint64_t barrier;
  PeerClusterShared& shared = *reinterpret_cast<PeerClusterShared*>(ptx::dynamic_shared());
  const ClusterPlace at = cluster_place();
  const int owner = owner_of_row(at.row, members);
  const bool mine = owner == group.member, norms = args.weight != nullptr && (mine || sums_go_back);
  init_cluster_barrier(&barrier, norms);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const bool has = at.column < args.hidden;
  uint2 weights = make_uint2(0, 0);
  if (has && norms) weights = *reinterpret_cast<const uint2*>(args.weight + at.column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + at.row);
  ptx::cluster_arrive();
  float4 four = make_float4(0, 0, 0, 0);
  uint2 words = make_uint2(0, 0);
  if (has) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(args.parts + row_begin(args, at.row) +
                                                               static_cast<std::size_t>(at.column)));
    push_part(group, owner, step, at.row, at.column, part);
    if (mine) {
      four = take_four<members>(group, args, step, at);
      for (int i = 1; i < members && sums_go_back; ++i) {
        // The residual of -0.0f and a sum of +0.0f is +0.0f, so this is never the armed value.
        ptx::store_peer(sum_slot(group, (group.member + i) % members, at.row, at.column), words_of(four));
      }
    } else if (sums_go_back) {
      four = take_four_of_owner(group, args, step, owner, at);
    } else {
      words = take_normed_four(group, step, owner, at);
    }
  }
  if (norms) {
    const float scale = cluster_scale(shared, &barrier, at, args.hidden, args.eps, four);
    if (has) words = weighted_four(four, scale, weights, args.weight_less_one);
    for (int i = 1; i < members && has && !sums_go_back; ++i)
      ptx::store_peer(four_of_row_slot(group, (group.member + i) % members, at), words);
  }
  if (args.weight != nullptr) put_norm(args, at.row, at.column, words);
  ptx::cluster_wait();  // every thread of the cluster has read the row's step
  if (at.block == 0 && threadIdx.x == 0) group.steps[at.row] = step + 1;
}

constexpr OfMembers kernels_two_shot_clusters{two_shot_clusters<2>, two_shot_clusters<4>,
                                              two_shot_clusters<8>};

}  // namespace

void load_two_shot_clusters(int members) { kernels_two_shot_clusters.load(members); }

void launch_two_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                              cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(args.rows * peer_cluster_blocks)),
                      .threads = peer_cluster_threads,
                      .shared_bytes = sizeof(PeerClusterShared),
                      .stream = stream,
                      .overlaps = true,
                      .cluster = peer_cluster_blocks,
                      .share = share_of(args.rows)};
  launch_kernel(launch, kernels_two_shot_clusters.of(group.layout.members), group, args, gives_sums(args));
}

}  // namespace nibble
