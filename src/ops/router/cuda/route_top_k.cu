// A warp a row. Each choice is the largest of what lies behind the last one in the order (logit, then lower
// index), so nothing is marked as taken; a row's logits stay in the first-level cache over the passes. Bytes:
// 4 x (experts + 2 top_k) a row; latency is all that counts.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/router/cuda/router_cuda.h"

namespace nibble {
namespace {

constexpr int route_warps = 4;
constexpr unsigned all_lanes = 0xffffffffu;

// Ascending with the value, both zeros alike; 0 for a NaN.
__device__ __forceinline__ std::uint32_t rank_of(float logit) {
  if (!(logit == logit)) return 0;
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__global__ void __launch_bounds__(route_warps * 32)
    route_top_k(const __grid_constant__ RouteTopKCudaArgs args) {
  ptx::grid_launch_dependents();
  const int row = static_cast<int>(blockIdx.x) * route_warps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int experts = args.experts, top_k = args.top_k;
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  if (args.row_limit != nullptr && row >= *args.row_limit) {
    if (lane < top_k) args.expert_ids[row * top_k + lane] = -1;
    return;
  }
  const float* of_row = args.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(experts);
  std::uint32_t last_rank = 0xffffffffu;  // no number's
  int last_expert = 0;
  int my_expert = 0;  // lane i keeps choice i
  for (int choice = 0; choice < top_k; ++choice) {
    std::uint32_t best_rank = 0;
    int best_expert = experts;  // none yet
    for (int expert = lane; expert < experts; expert += 32) {
      const std::uint32_t rank = rank_of(of_row[expert]);
      const bool behind = rank < last_rank || (rank == last_rank && expert > last_expert);
      if (behind && (best_expert == experts || rank > best_rank)) {
        best_rank = rank;
        best_expert = expert;
      }
    }
    last_rank = __reduce_max_sync(all_lanes, best_rank);
    const bool has_it = best_expert < experts && best_rank == last_rank;
    last_expert = experts - static_cast<int>(__reduce_max_sync(
                                all_lanes, has_it ? static_cast<unsigned>(experts - best_expert) : 0u));
    if (lane == choice) my_expert = last_expert;
  }
  const float mine = lane < top_k ? of_row[my_expert] : 0.0f;
  const float power = __expf(mine - __shfl_sync(all_lanes, mine, 0));
  float sum = 0;
  for (int choice = 0; choice < top_k; ++choice) sum += __shfl_sync(all_lanes, power, choice);
  if (lane < top_k) {
    const std::size_t at =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(lane);
    args.expert_ids[at] = my_expert;
    args.expert_weights[at] = power / sum;
  }
}

}  // namespace

Status route_top_k_cuda(const RouteTopKCudaArgs& args, cudaStream_t stream) {
  if (args.top_k < 1 || args.top_k > 32 || args.top_k > args.experts) {
    return invalid_argument("a top-k from 1 to 32 and at most the number of experts is supported, not " +
                            std::to_string(args.top_k) + " of " + std::to_string(args.experts));
  }
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>((args.rows + route_warps - 1) / route_warps)),
                 .threads = route_warps * 32,
                 .stream = stream,
                 .overlaps = true},
                route_top_k, args);
  return {};
}

}  // namespace nibble
