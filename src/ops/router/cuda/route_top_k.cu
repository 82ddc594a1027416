// A warp a row, whose logits stay in the first-level cache over its choices. Bytes: 4 x (experts + 2 top_k) a
// row; latency is all that counts.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/router/cuda/route_row.cuh"
#include "ops/router/cuda/router_cuda.h"

namespace nibble {
namespace {

constexpr int route_warps = 4;

__global__ void __launch_bounds__(route_warps * 32)
    route_top_k(const __grid_constant__ RouteTopKCudaArgs args) {
  ptx::grid_launch_dependents();
  const int row = static_cast<int>(blockIdx.x) * route_warps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int experts = args.experts, top_k = args.top_k;
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  if (args.row_limit != nullptr && args.first_row + row >= *args.row_limit) {
    if (lane < top_k) args.expert_ids[row * top_k + lane] = -1;
    return;
  }
  const std::size_t chosen = static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k);
  route_row(args.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(experts),
            {experts, top_k, args.of_all}, args.expert_ids + chosen, args.expert_weights + chosen);
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
