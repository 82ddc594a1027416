// One-shot for few rows: a cluster of eight blocks a row, as in ops/rms_norm/cuda/cluster_rms_norm.cu, a
// thread having four columns. One multiprocessor sends 49 GB/s, a row to three peers is 35 KB, so a row's
// bytes leave from eight.
#include "ops/all_reduce_norm/cuda/peer_cluster_row.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

template <int members>
__global__ void __launch_bounds__(peer_cluster_threads, 8)
    one_shot_clusters(const __grid_constant__ PeerGroup group,
                      const __grid_constant__ AllReduceNormCudaArgs args) {
  __shared__ std::uint64_t barrier;
  PeerClusterShared& shared = *reinterpret_cast<PeerClusterShared*>(ptx::dynamic_shared());
  init_cluster_barrier(&barrier, true);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const ClusterPlace at = cluster_place();
  const bool has = at.column < args.hidden;
  uint2 weights = make_uint2(0, 0);
  if (has && args.weight != nullptr) weights = *reinterpret_cast<const uint2*>(args.weight + at.column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + at.row);
  if (has && args.parts != nullptr) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(args.parts + row_begin(args, at.row) +
                                                               static_cast<std::size_t>(at.column)));
#pragma unroll
    for (int i = 1; i <= members; ++i)
      push_part(group, (group.member + i) % members, step, at.row, at.column, part);
  }
  float4 four = make_float4(0, 0, 0, 0);
  if (has) four = take_four<members>(group, args, step, at);
  // Behind it all threads of the cluster have read the row's step.
  const float scale = cluster_scale(shared, &barrier, at, args.hidden, args.eps, four);
  if (at.block == 0 && threadIdx.x == 0) group.steps[at.row] = step + 1;
  if (args.weight == nullptr) return;
  put_norm(args, at.row, at.column,
           has ? weighted_four(four, scale, weights, args.weight_less_one) : make_uint2(0, 0));
}

constexpr OfMembers kernels_one_shot_clusters{one_shot_clusters<2>, one_shot_clusters<4>,
                                              one_shot_clusters<8>};

}  // namespace

void load_one_shot_clusters(int members) { kernels_one_shot_clusters.load(members); }

void launch_one_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                              cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(args.rows * peer_cluster_blocks)),
                      .threads = peer_cluster_threads,
                      .shared_bytes = sizeof(PeerClusterShared),
                      .stream = stream,
                      .overlaps = true,
                      .cluster = peer_cluster_blocks,
                      .share = share_of(args.rows)};
  launch_kernel(launch, kernels_one_shot_clusters.of(group.layout.members), group, args);
}

}  // namespace nibble
