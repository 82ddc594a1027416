// A warp a row (route_sigmoid_row.cuh). Bytes: 4 x (experts + 2 top_k) a row; latency is all that counts.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/router/cuda/route_sigmoid_row.cuh"

namespace nibble {
namespace {

constexpr int sigmoid_warps = 4;

__global__ void __launch_bounds__(sigmoid_warps * 32)
    route_sigmoid(const __grid_constant__ RouteSigmoidCudaArgs args) {
  __shared__ float choices_of_rows[sigmoid_warps][route_sigmoid_most_experts];
  ptx::grid_launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * sigmoid_warps + warp;
  const int experts = args.experts, top_k = args.top_k;
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  const std::size_t chosen = static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k);
  if (args.row_limit != nullptr && args.first_row + row >= *args.row_limit) {
    if (lane < top_k) args.expert_ids[chosen + static_cast<std::size_t>(lane)] = -1;
    return;
  }
  const float* const logits = args.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(experts);
  route_sigmoid_row(args.rule, {logits, choices_of_rows[warp], experts, top_k}, args.expert_ids + chosen,
                    args.expert_weights + chosen);
}

}  // namespace

Status check_sigmoid_rule(const SigmoidRule& rule, int experts, int top_k) {
  if (experts > route_sigmoid_most_experts) {
    return invalid_argument("the router's kernel takes up to " + std::to_string(route_sigmoid_most_experts) +
                            " experts, not " + std::to_string(experts));
  }
  if (rule.groups < 1 || rule.groups > route_sigmoid_most_groups || experts % rule.groups != 0 ||
      rule.top_groups < 1 || rule.top_groups > rule.groups) {
    return invalid_argument("the router's kernel chooses from " + std::to_string(rule.top_groups) + " of " +
                            std::to_string(rule.groups) + " groups; there are up to " +
                            std::to_string(route_sigmoid_most_groups) + ", of as many experts each");
  }
  const int open = experts / rule.groups * rule.top_groups;
  if (top_k < 1 || top_k > 32 || top_k > open) {
    return invalid_argument("a top-k from 1 to 32 and at most the number of experts is supported, not " +
                            std::to_string(top_k) + " of " + std::to_string(open));
  }
  return {};
}

Status route_sigmoid_cuda(const RouteSigmoidCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_sigmoid_rule(args.rule, args.experts, args.top_k));
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>((args.rows + sigmoid_warps - 1) / sigmoid_warps)),
                 .threads = sigmoid_warps * 32,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                route_sigmoid, args);
  return {};
}

}  // namespace nibble
