// Two-shot for a moderate number of rows: what two_shot_rows.cu does, by a cluster of eight blocks a row, a
// thread having four columns.
#include "ops/all_reduce_norm/cuda/peer_cluster_row.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int cluster_blocks = 8;
using Cluster = PeerCluster<cluster_blocks>;

template <int members>
__global__ void __launch_bounds__(Cluster::threads, 8)
    two_shot_clusters(const __grid_constant__ PeerGroup group,
                      const __grid_constant__ AllReduceNormCudaArgs args, const bool sums_go_back) {
  __shared__ Cluster::Barriers barriers;
  auto& shared = *reinterpret_cast<Cluster::Shared*>(ptx::dynamic_shared());
  const ClusterPlace at = Cluster::place();
  const int row = at.cluster, column = at.column, owner = owner_of_row(row, members);
  const bool mine = owner == group.member, norms = args.weight != nullptr && (mine || sums_go_back);
  Cluster::init(barriers);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const bool has = column < args.hidden;
  uint2 weights = make_uint2(0, 0);
  if (has && norms) weights = *reinterpret_cast<const uint2*>(args.weight + column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + row);
  ptx::cluster_arrive();
  float4 four = make_float4(0, 0, 0, 0);
  uint2 words = make_uint2(0, 0);
  if (has) {
    push_part(group, owner, step, row, column, part_of(args, row, column));
    if (mine) {
      four = take_four<members>(group, args, step, row, column);
      if (sums_go_back) give_four<members>(group, row, column, four);
    } else if (sums_go_back) {
      four = take_four_of_owner(group, args, step, owner, row, column);
    } else {
      words = take_normed_four(group, step, owner, row, column);
    }
  }
  if (norms) {
    const float scale = Cluster::scale(shared, barriers, 0, at, args.hidden, args.eps, four);
    if (has) words = weighted_four(four, scale, weights, args.weight_less_one);
    if (has && !sums_go_back) give_normed_four<members>(group, row, column, words);
  }
  if (args.weight != nullptr) put_norm(args, row, column, words);
  ptx::cluster_wait();  // every thread of the cluster has read the row's step
  if (at.block == 0 && threadIdx.x == 0) group.steps[row] = step + 1;
}

constexpr OfMembers kernels_two_shot_clusters{two_shot_clusters<2>, two_shot_clusters<4>,
                                              two_shot_clusters<8>};

}  // namespace

void load_two_shot_clusters(int members) { kernels_two_shot_clusters.load(members); }

void launch_two_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                              cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(args.rows * cluster_blocks)),
                      .threads = Cluster::threads,
                      .shared_bytes = sizeof(Cluster::Shared),
                      .stream = stream,
                      .overlaps = true,
                      .cluster = cluster_blocks,
                      .share = share_of(args.rows)};
  launch_kernel(launch, kernels_two_shot_clusters.of(group.layout.members), group, args, gives_sums(args));
}

}  // namespace nibble
