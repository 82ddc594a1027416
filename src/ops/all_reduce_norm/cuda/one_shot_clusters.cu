// One-shot for few rows, a cluster of blocks a row as in ops/rms_norm/cuda/cluster_rms_norm.cu. One
// multiprocessor sends 49 GB/s and a row to three peers is 35 KB, so with few rows a row's bytes leave from
// eight blocks. From some number of rows on pairs of blocks are sooner: of clusters of eight an H200 holds
// 124 at once and the next waits for one to end, of pairs 132.
#include "ops/all_reduce_norm/cuda/peer_cluster_row.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

template <class Rows, int members, int blocks>
__global__ void __launch_bounds__(PeerCluster<blocks>::threads, blocks)
    one_shot_clusters(const __grid_constant__ PeerGroup group,
                      const __grid_constant__ AllReduceNormCudaArgs args, const __grid_constant__ Rows out) {
  using Cluster = PeerCluster<blocks>;
  using Form = ClusterForm<Rows, blocks>;
  __shared__ typename Form::Barriers barriers;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(ptx::dynamic_shared());
  Form::init(barriers);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const ClusterPlace at = Cluster::place();
  const int row = at.cluster, column = at.column;
  const bool has = column < args.hidden;
  uint2 weights = make_uint2(0, 0);
  if (has && args.weight != nullptr) weights = *reinterpret_cast<const uint2*>(args.weight + column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + row);
  if (has && args.parts != nullptr) {
    const float4 part = part_of(args, row, column);
#pragma unroll
    for (int i = 1; i <= members; ++i)
      push_part(group, (group.member + i) % members, step, row, column, part);
  }
  float4 four = make_float4(0, 0, 0, 0);
  if (has) four = take_four<members>(group, args, step, row, column);
  const float global_scale = args.weight == nullptr ? 0.0f : global_scale_of(out, row);
  // Behind it all threads of the cluster have read the row's step.
  const float scale = Cluster::scale(shared, barriers, 0, at, args.hidden, args.eps, four);
  if (at.block == 0 && threadIdx.x == 0) group.steps[row] = step + 1;
  if (args.weight == nullptr) return;
  const uint2 words = has ? weighted_four(four, scale, weights, args.weight_less_one) : make_uint2(0, 0);
  put_four(out, {row, column, args.hidden}, Form::of(shared, barriers, 0, at.block, words, global_scale));
}

template <class Rows, int blocks>
constexpr OfMembers kernels_one_shot_clusters{one_shot_clusters<Rows, 2, blocks>,
                                              one_shot_clusters<Rows, 4, blocks>,
                                              one_shot_clusters<Rows, 8, blocks>};

template <int blocks>
void launch_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  with_form(args, [&]<class Rows>(const Rows& out) {
    launch_kernel(cluster_launch<Rows, blocks>(args.rows, args.rows, stream),
                  kernels_one_shot_clusters<Rows, blocks>.of(group.layout.members), group, args, out);
  });
}

}  // namespace

void load_one_shot_clusters(int members) {
  for_each_form([&]<class Rows>(const Rows&) {
    kernels_one_shot_clusters<Rows, 8>.load(members);
    kernels_one_shot_clusters<Rows, 2>.load(members);
  });
}

void launch_one_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                              cudaStream_t stream) {
  launch_clusters<8>(group, args, stream);
}
void launch_one_shot_pairs(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  launch_clusters<2>(group, args, stream);
}

}  // namespace nibble
