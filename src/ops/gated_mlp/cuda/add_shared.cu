// A thread four columns of a row. Bytes: 4 in for each chosen expert, 4 for the shared one, 4 out a column.
#include <string>

#include "ops/cuda/expert_sum.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/fixed_math.h"
#include "ops/gated_mlp/cuda/gated_mlp_cuda.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int add_threads = 128;

// Choices whose loads are under way together: of few rows all, since memory is waited for once then, of many
// as many as leave registers for more rows.
constexpr int few_rows_choices = 8, many_rows_choices = 4, few_rows = 256;

// Products are asked for without looking first which there are.
template <int choices_at_once>
__device__ __forceinline__ float4 of_experts(const ExpertParts& experts, int row, int column, int hidden) {
  ExpertSum<float4> sum;
#pragma unroll 1
  for (int first = 0; first < experts.top_k; first += choices_at_once) {
    std::int32_t ids[choices_at_once];
    float weights[choices_at_once] = {};
    float4 products[choices_at_once] = {};
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
      ids[i] = -1;
      if (first + i >= experts.top_k) continue;
      const std::size_t slot = static_cast<std::size_t>(row) * static_cast<std::size_t>(experts.top_k) +
                               static_cast<std::size_t>(first + i);
      ids[i] = experts.expert_ids[slot];
      weights[i] = experts.expert_weights[slot];
      products[i] = *reinterpret_cast<const float4*>(experts.products +
                                                     slot * static_cast<std::size_t>(hidden) + column);
    }
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) sum.add_product(ids[i], weights[i], products[i]);
  }
  return sum.sum;
}

template <int choices_at_once>
__global__ void __launch_bounds__(add_threads) add_shared(const __grid_constant__ AddSharedCudaArgs args) {
  const int fours = args.hidden / 4;
  const int at = static_cast<int>(blockIdx.x) * add_threads + static_cast<int>(threadIdx.x);
  const int row = at / fours, column = (at - row * fours) * 4;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  const std::size_t place = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.hidden) +
                            static_cast<std::size_t>(column);
  const float4 shared = *reinterpret_cast<const float4*>(args.shared + place);
  const float4 routed = args.routed != nullptr
                            ? *reinterpret_cast<const float4*>(args.routed + place)
                            : of_experts<choices_at_once>(args.experts, row, column, args.hidden);
  const float share =
      args.logits == nullptr
          ? 1.0f
          : 1.0f / (1.0f + fixed_exp(-args.logits[static_cast<std::size_t>(row) * args.logit_stride]));
  *reinterpret_cast<float4*>(args.out + place) = add(routed, times(shared, share));
}

}  // namespace

Status add_shared_cuda(const AddSharedCudaArgs& args, cudaStream_t stream) {
  if (args.hidden % 4 != 0) {
    return invalid_argument("a shared expert's sum takes a multiple of 4 columns, not " +
                            std::to_string(args.hidden));
  }
  if ((args.routed == nullptr) == (args.experts.products == nullptr))
    return invalid_argument("a shared expert joins a sum or the products of experts");
  if (args.rows == 0) return {};
  const int pieces = args.rows * (args.hidden / 4);
  launch_kernel({.blocks = dim3(static_cast<unsigned>((pieces + add_threads - 1) / add_threads)),
                 .threads = add_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                args.rows <= few_rows ? add_shared<few_rows_choices> : add_shared<many_rows_choices>, args);
  return {};
}

}  // namespace nibble
