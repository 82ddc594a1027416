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

template <class Rows, int members>
__global__ void __launch_bounds__(Cluster::threads, 8)
    two_shot_clusters(const __grid_constant__ PeerGroup group,
                      const __grid_constant__ AllReduceNormCudaArgs args, const __grid_constant__ Rows out,
                      const bool sums_go_back) {
  using Form = ClusterForm<Rows, cluster_blocks>;
  __shared__ typename Form::Barriers barriers;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(ptx::dynamic_shared());
  const ClusterPlace at = Cluster::place();
  const int row = at.cluster, column = at.column, owner = owner_of_row(row, members);
  const bool mine = owner == group.member, norms = args.weight != nullptr && (mine || sums_go_back);
  Form::init(barriers);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const bool has = column < args.hidden;
  uint2 weights = make_uint2(0, 0);
  if (has && norms) weights = *reinterpret_cast<const uint2*>(args.weight + column);
  ptx::cluster_wait();  // the other blocks' barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + row);
  ptx::cluster_arrive();
  const RowPlace place{row, column, args.hidden};
  float4 four = make_float4(0, 0, 0, 0);
  typename Form::Four normed{};
  if (has) {
    push_part(group, owner, step, row, column, part_of(args, row, column));
    if (mine) {
      four = take_four<members>(group, args, step, row, column);
      if (sums_go_back) give_four<members>(group, row, column, four);
    } else if (sums_go_back) {
      four = take_four_of_owner(group, args, step, owner, row, column);
    } else if constexpr (!Form::whole_warps) {
      take_normed_four(group, step, owner, place, normed);
    }
  }
  if constexpr (Form::whole_warps) {
    if (!mine && !sums_go_back) take_normed_four(group, step, owner, place, normed);
  }
  if (norms) {
    const float global_scale = global_scale_of(out, row);
    const float scale = Cluster::scale(shared, barriers, 0, at, args.hidden, args.eps, four);
    const uint2 words = has ? weighted_four(four, scale, weights, args.weight_less_one) : make_uint2(0, 0);
    normed = Form::of(shared, barriers, 0, at.block, words, global_scale);
    if ((has || Form::whole_warps) && !sums_go_back) give_normed_four<members>(group, place, normed);
  }
  if (args.weight != nullptr) put_four(out, place, normed);
  ptx::cluster_wait();  // every thread of the cluster has read the row's step
  if (at.block == 0 && threadIdx.x == 0) group.steps[row] = step + 1;
}

template <class Rows>
constexpr OfMembers kernels_two_shot_clusters{two_shot_clusters<Rows, 2>, two_shot_clusters<Rows, 4>,
                                              two_shot_clusters<Rows, 8>};

}  // namespace

void load_two_shot_clusters(int members) {
  for_each_form([&]<class Rows>(const Rows&) { kernels_two_shot_clusters<Rows>.load(members); });
}

void launch_two_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                              cudaStream_t stream) {
  with_form(args, [&]<class Rows>(const Rows& out) {
    launch_kernel(cluster_launch<Rows, cluster_blocks>(args.rows, args.rows, stream),
                  kernels_two_shot_clusters<Rows>.of(group.layout.members), group, args, out,
                  gives_sums(args));
  });
}

}  // namespace nibble
