// Two-shot for many rows of up to 4,096 columns, by pairs of blocks, a thread having four columns. As many
// pairs as are on a GPU at once share the rows: a pair sends the parts of all its rows, then adds and norms
// those that this member owns, then takes in the others. No wait comes before a send that somebody else's
// wait depends on, other than an owner's for parts.
#include <algorithm>

#include "ops/all_reduce_norm/cuda/peer_cluster_row.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int pair_blocks = 2;
using Pair = PeerCluster<pair_blocks>;

template <class Rows, int members>
__global__ void __launch_bounds__(Pair::threads, 2)
    two_shot_pairs(const __grid_constant__ PeerGroup group,
                   const __grid_constant__ AllReduceNormCudaArgs args, const __grid_constant__ Rows out,
                   const bool sums_go_back) {
  using Form = ClusterForm<Rows, pair_blocks>;
  __shared__ typename Form::Barriers barriers;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(ptx::dynamic_shared());
  Form::init(barriers);
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const ClusterPlace at = Pair::place();
  const int first = at.cluster, pairs = static_cast<int>(gridDim.x) / pair_blocks, column = at.column;
  const bool has = column < args.hidden, norms = args.weight != nullptr;
  uint2 weights = make_uint2(0, 0);
  if (has && norms) weights = *reinterpret_cast<const uint2*>(args.weight + column);
  ptx::cluster_wait();  // the other block's barriers are ready
  ptx::grid_dependency_wait();
  const std::uint32_t first_step = __ldcg(group.steps + first);
  const auto step_of = [&](int row) { return row == first ? first_step : __ldcg(group.steps + row); };
  for (int row = first; row < args.rows && has; row += pairs)
    push_part(group, owner_of_row(row, members), step_of(row), row, column, part_of(args, row, column));
  int turn = 0;  // rows of which this pair has made the norm
  const auto normed = [&](int row, const float4& four) {
    const float global_scale = global_scale_of(out, row);
    const float scale = Pair::scale(shared, barriers, turn, at, args.hidden, args.eps, four);
    const uint2 words = has ? weighted_four(four, scale, weights, args.weight_less_one) : make_uint2(0, 0);
    return Form::of(shared, barriers, turn++, at.block, words, global_scale);
  };
  for (int row = first; row < args.rows; row += pairs) {
    if (owner_of_row(row, members) != group.member) continue;
    float4 four = make_float4(0, 0, 0, 0);
    if (has) {
      four = take_four<members>(group, args, step_of(row), row, column);
      if (sums_go_back) give_four<members>(group, row, column, four);
    }
    if (!norms) continue;
    const auto own = normed(row, four);
    if (!sums_go_back) give_normed_four<members>(group, {row, column, args.hidden}, own);
    put_four(out, {row, column, args.hidden}, own);
  }
  for (int row = first; row < args.rows; row += pairs) {
    const int owner = owner_of_row(row, members);
    if (owner == group.member) continue;
    if (!sums_go_back) {
      const RowPlace place{row, column, args.hidden};
      typename Form::Four theirs{};
      take_normed_four(group, step_of(row), owner, place, theirs);
      put_four(out, place, theirs);
      continue;
    }
    float4 four = make_float4(0, 0, 0, 0);
    if (has) four = take_four_of_owner(group, args, step_of(row), owner, row, column);
    if (norms) put_four(out, {row, column, args.hidden}, normed(row, four));
  }
  ptx::cluster_barrier();  // every thread of the pair has read the rows' steps
  if (at.block != 0 || threadIdx.x != 0) return;
  for (int row = first; row < args.rows; row += pairs) group.steps[row] = step_of(row) + 1;
}

template <class Rows>
constexpr OfMembers kernels_two_shot_pairs{two_shot_pairs<Rows, 2>, two_shot_pairs<Rows, 4>,
                                           two_shot_pairs<Rows, 8>};

}  // namespace

void load_two_shot_pairs(int members) {
  for_each_form([&]<class Rows>(const Rows&) { kernels_two_shot_pairs<Rows>.load(members); });
}

void launch_two_shot_pairs(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  with_form(args, [&]<class Rows>(const Rows& out) {
    const int pairs = std::min(args.rows, two_shot_turn);
    launch_kernel(cluster_launch<Rows, pair_blocks>(pairs, args.rows, stream),
                  kernels_two_shot_pairs<Rows>.of(group.layout.members), group, args, out, gives_sums(args));
  });
}

}  // namespace nibble
