// One-shot: a block a row. Bytes out of a member: 4 x hidden x (members - 1) a row.
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/all_reduce_norm/cuda/peer_norm_row.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

template <class Rows, int members>
__global__ void __launch_bounds__(norm_threads, 2)
    one_shot_rows(const __grid_constant__ PeerGroup group, const __grid_constant__ AllReduceNormCudaArgs args,
                  const __grid_constant__ Rows out) {
  float* const x = reinterpret_cast<float*>(ptx::dynamic_shared());  // [hidden]
  __shared__ float of_warp[norm_warps];
  ptx::grid_launch_dependents();
  const int row = static_cast<int>(blockIdx.x);
  const FirstWeights weights = first_weights(args);
  ptx::grid_dependency_wait();
  const std::uint32_t step = __ldcg(group.steps + row);
  if (args.parts != nullptr) {
    push_row(group, args, step, row, members, [&](int i) { return (group.member + 1 + i) % members; });
  }
  PeerWait wait(group, PeerWait::For::parts);
  take_row<members>(group, args, step, row, x, wait);
  const float scale = scale_of_row(args, x, of_warp);
  if (threadIdx.x == 0) group.steps[row] = step + 1;
  if (args.weight != nullptr) norm_row(args, out, row, x, scale, weights, [](const auto&...) {});
}

template <class Rows>
constexpr OfMembers kernels_one_shot_rows{one_shot_rows<Rows, 2>, one_shot_rows<Rows, 4>,
                                          one_shot_rows<Rows, 8>};

}  // namespace

void load_one_shot_rows(int members) {
  for_each_form([&]<class Rows>(const Rows&) { kernels_one_shot_rows<Rows>.load(members); });
}

void launch_one_shot_rows(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(args.rows)),
                      .threads = norm_threads,
                      .shared_bytes = static_cast<std::size_t>(args.hidden) * sizeof(float),
                      .stream = stream,
                      .overlaps = true,
                      .share = share_of(args.rows)};
  with_form(args, [&]<class Rows>(const Rows& out) {
    launch_kernel(launch, kernels_one_shot_rows<Rows>.of(group.layout.members), group, args, out);
  });
}

}  // namespace nibble
