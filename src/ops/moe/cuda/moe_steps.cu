#include <string>

#include "ops/cuda/expert_sum.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int combine_threads = 128;

// out[token] = the sum over its experts, four columns a thread. Bytes: 4 x hidden x (top_k + 1) a token.
// most_choices: as many rows' loads are on their way.
template <int most_choices>
__global__ void __launch_bounds__(combine_threads)
    moe_combine(const float* products, const std::int32_t* expert_ids, const float* expert_weights, int top_k,
                int hidden, float* out) {
  ptx::grid_launch_dependents();
  const int token = static_cast<int>(blockIdx.y);
  const int column = (static_cast<int>(blockIdx.x) * combine_threads + static_cast<int>(threadIdx.x)) * 4;
  ptx::grid_dependency_wait();
  if (column >= hidden) return;
  // All loads before the first sum, so that their latencies are one; a choice of no expert has a row too.
  std::int32_t ids[most_choices];
  float weights[most_choices];
  float4 rows[most_choices];
#pragma unroll
  for (int choice = 0; choice < most_choices; ++choice) {
    if (choice >= top_k) break;
    const int slot = token * top_k + choice;
    ids[choice] = expert_ids[slot];
    weights[choice] = expert_weights[slot];
    rows[choice] =
        *reinterpret_cast<const float4*>(products + static_cast<std::size_t>(slot) * hidden + column);
  }
  ExpertSum<float4> total;
#pragma unroll
  for (int choice = 0; choice < most_choices; ++choice) {
    if (choice >= top_k) break;
    total.add_product(ids[choice], weights[choice], rows[choice]);
  }
  *reinterpret_cast<float4*>(out + static_cast<std::size_t>(token) * hidden + column) = total.sum;
}

}  // namespace

Status check_moe_shapes(const MoeMatrices& matrices, const MoeCudaArgs& args) {
  const auto &up = matrices.gate_up, &down = matrices.down;
  if (up.rows != 2 * down.cols || up.cols != down.rows || up.experts != down.experts) {
    return invalid_argument("the expert layer's matrices do not fit each other: gate_up [" +
                            std::to_string(up.rows) + ", " + std::to_string(up.cols) + "], down [" +
                            std::to_string(down.rows) + ", " + std::to_string(down.cols) + "]");
  }
  if (up.rows % granule_rows != 0 || down.rows % granule_rows != 0 || up.cols % matrices.scale_group != 0 ||
      down.cols % matrices.scale_group != 0) {
    return invalid_argument("the expert layer's rows must be multiples of 16 and its columns of " +
                            std::to_string(matrices.scale_group));
  }
  const int padded_cols = (up.cols + granule_k - 1) / granule_k * granule_k;
  if (args.x_stride < padded_cols || args.x_stride % 8 != 0) {
    return invalid_argument("activations need a stride of at least " + std::to_string(padded_cols) +
                            ", a multiple of 8, not " + std::to_string(args.x_stride));
  }
  if (args.top_k < 1 || args.top_k > moe_cuda_max_top_k) {
    return invalid_argument("a top-k from 1 to " + std::to_string(moe_cuda_max_top_k) +
                            " is supported, not " + std::to_string(args.top_k));
  }
  return {};
}

void add_experts_cuda(const MoeCudaArgs& args, int hidden, cudaStream_t stream) {
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>((hidden + combine_threads * 4 - 1) / (combine_threads * 4)),
                      static_cast<unsigned>(args.tokens)),
       .threads = combine_threads,
       .stream = stream,
       .overlaps = true},
      args.top_k <= 8 ? moe_combine<8> : moe_combine<moe_cuda_max_top_k>,
      static_cast<const float*>(args.workspace.products), args.expert_ids, args.expert_weights, args.top_k,
      hidden, args.out);
}

}  // namespace nibble
