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

template <int members>
__global__ void __launch_bounds__(Pair::threads, 2)
    two_shot_pairs(const __grid_constant__ PeerGroup group,
                   const __grid_constant__ AllReduceNormCudaArgs args, const bool sums_go_back) {
  __shared__ Pair::Barriers barriers;
  auto& shared = *reinterpret_cast<Pair::Shared*>(ptx::dynamic_shared());
  Pair::init(barriers);
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
  const auto normed = [&](const float4& four) {
    const float scale = Pair::scale(shared, barriers, turn++, at, args.hidden, args.eps, four);
    return has ? weighted_four(four, scale, weights, args.weight_less_one) : make_uint2(0, 0);
  };
  for (int row = first; row < args.rows; row += pairs) {
    if (owner_of_row(row, members) != group.member) continue;
    float4 four = make_float4(0, 0, 0, 0);
    if (has) {
      four = take_four<members>(group, args, step_of(row), row, column);
      if (sums_go_back) give_four<members>(group, row, column, four);
    }
    if (!norms) continue;
    const uint2 words = normed(four);
    if (has && !sums_go_back) give_normed_four<members>(group, row, column, words);
    put_norm(args, row, column, words);
  }
  for (int row = first; row < args.rows; row += pairs) {
    const int owner = owner_of_row(row, members);
    if (owner == group.member) continue;
    if (!sums_go_back) {
      put_norm(args, row, column,
               has ? take_normed_four(group, step_of(row), owner, row, column) : make_uint2(0, 0));
      continue;
    }
    float4 four = make_float4(0, 0, 0, 0);
    if (has) four = take_four_of_owner(group, args, step_of(row), owner, row, column);
    if (norms) put_norm(args, row, column, normed(four));
  }
  ptx::cluster_barrier();  // every thread of the pair has read the rows' steps
  if (at.block != 0 || threadIdx.x != 0) return;
  for (int row = first; row < args.rows; row += pairs) group.steps[row] = step_of(row) + 1;
}

constexpr OfMembers kernels_two_shot_pairs{two_shot_pairs<2>, two_shot_pairs<4>, two_shot_pairs<8>};

}  // namespace

void load_two_shot_pairs(int members) { kernels_two_shot_pairs.load(members); }

void launch_two_shot_pairs(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(std::min(args.rows, two_shot_turn) * pair_blocks)),
                      .threads = Pair::threads,
                      .shared_bytes = sizeof(Pair::Shared),
                      .stream = stream,
                      .overlaps = true,
                      .cluster = pair_blocks,
                      .share = share_of(args.rows)};
  launch_kernel(launch, kernels_two_shot_pairs.of(group.layout.members), group, args, gives_sums(args));
}

}  // namespace nibble
