// A warp a row: what experts are chosen by lies in shared memory, where a lane finds the two best of its
// groups; then a lane has its experts' ranks in registers. Bytes: 4 x (experts + 2 top_k) a row; latency is
// all that counts.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/fixed_math.h"
#include "ops/ptx/grid.cuh"
#include "ops/router/cuda/route_row.cuh"
#include "ops/router/cuda/route_sigmoid_cuda.h"

namespace nibble {
namespace {

constexpr int sigmoid_warps = 4;
constexpr int experts_of_lane = route_sigmoid_most_experts / 32;
constexpr int groups_of_lane = route_sigmoid_most_groups / 32;
constexpr unsigned all_lanes = 0xffffffffu;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + fixed_exp(-x)); }

// The best of numbered candidates, of which lane i has those that leave i when divided by 32: the highest
// rank, and of equals the lowest number. Rank 0 is that of one that cannot be chosen.
template <int count>
struct Candidates {
  std::uint32_t rank[count];

  // The chosen one, which no later choice finds.
  __device__ __forceinline__ int take() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t own = 0;
    int place = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (rank[i] > own) {
        own = rank[i];
        place = i;
      }
    }
    const std::uint32_t best = __reduce_max_sync(all_lanes, own);
    const unsigned number = static_cast<unsigned>(place * 32 + lane);
    const int chosen = static_cast<int>(__reduce_min_sync(all_lanes, own == best ? number : all_lanes));
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i * 32 + lane == chosen) rank[i] = 0;
    }
    return chosen;
  }
};

// A bit for each group whose experts may be chosen.
__device__ __forceinline__ std::uint64_t kept_groups(const RouteSigmoidCudaArgs& args, const float* choices) {
  if (args.groups == 1) return 1;
  constexpr std::uint32_t none = 0xff800000u;  // minus infinity
  const int lane = static_cast<int>(threadIdx.x) % 32, of_group = args.experts / args.groups;
  Candidates<groups_of_lane> groups;
#pragma unroll
  for (int i = 0; i < groups_of_lane; ++i) {
    const int group = i * 32 + lane;
    groups.rank[i] = 0;
    if (group >= args.groups) continue;
    float best = __uint_as_float(none), second = best;
#pragma unroll 4
    for (int expert = 0; expert < of_group; ++expert) {
      const float choice = choices[group * of_group + expert];
      if (choice > best) {
        second = best;
        best = choice;
      } else if (choice > second) {
        second = choice;
      }
    }
    groups.rank[i] = rank_of(of_group == 1 ? best : best + second);
  }
  std::uint64_t kept = 0;
#pragma unroll 1
  for (int i = 0; i < args.top_groups; ++i) kept |= std::uint64_t{1} << groups.take();
  return kept;
}

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
  float* const choices = choices_of_rows[warp];
  for (int i = lane; i < experts; i += 32)
    choices[i] = sigmoid(logits[i]) + (args.bias == nullptr ? 0.0f : args.bias[i]);
  __syncwarp();
  const std::uint64_t kept = kept_groups(args, choices);
  const int of_group = experts / args.groups;
  Candidates<experts_of_lane> candidates;
#pragma unroll
  for (int i = 0; i < experts_of_lane; ++i) {
    const int expert = i * 32 + lane;
    const bool open = expert < experts && (kept >> (expert / of_group) & 1) != 0;
    candidates.rank[i] = open ? rank_of(choices[expert]) : 0;
  }
  int own = 0;
#pragma unroll 1
  for (int i = 0; i < top_k; ++i) {
    const int expert = candidates.take();
    if (lane == i) own = expert;
  }
  float weight = sigmoid(logits[own]), sum = 0;
#pragma unroll 1
  for (int i = 0; i < top_k; ++i) sum = __fadd_rn(sum, __shfl_sync(all_lanes, weight, i));
  if (args.renormalise) weight = weight / __fadd_rn(sum, 1e-20f);
  if (lane >= top_k) return;
  args.expert_ids[chosen + static_cast<std::size_t>(lane)] = own;
  args.expert_weights[chosen + static_cast<std::size_t>(lane)] = __fmul_rn(weight, args.scale);
}

}  // namespace

Status route_sigmoid_cuda(const RouteSigmoidCudaArgs& args, cudaStream_t stream) {
  if (args.experts > route_sigmoid_most_experts) {
    return invalid_argument("the router's kernel takes up to " + std::to_string(route_sigmoid_most_experts) +
                            " experts, not " + std::to_string(args.experts));
  }
  if (args.groups < 1 || args.groups > route_sigmoid_most_groups || args.experts % args.groups != 0 ||
      args.top_groups < 1 || args.top_groups > args.groups) {
    return invalid_argument("the router's kernel chooses from " + std::to_string(args.top_groups) + " of " +
                            std::to_string(args.groups) + " groups; there are up to " +
                            std::to_string(route_sigmoid_most_groups) + ", of as many experts each");
  }
  const int open = args.experts / args.groups * args.top_groups;
  if (args.top_k < 1 || args.top_k > 32 || args.top_k > open) {
    return invalid_argument("a top-k from 1 to 32 and at most the number of experts is supported, not " +
                            std::to_string(args.top_k) + " of " + std::to_string(open));
  }
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
