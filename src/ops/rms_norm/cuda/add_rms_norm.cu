// A block a row. Bytes: 4 x hidden x (3 + what delta or the experts take) and 2 x hidden for each output, 60
// KB a row of gpt-oss; for few rows only the latency counts: one pass over memory, the row staying in shared
// memory, where each thread reads back what it wrote itself.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {
namespace {

constexpr int norm_threads = 256;
constexpr int norm_warps = norm_threads / 32;

struct Eight {
  float4 low, high;
};
__device__ __forceinline__ Eight load_eight(const float* at) {
  return {*reinterpret_cast<const float4*>(at), *reinterpret_cast<const float4*>(at + 4)};
}
__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
__device__ __forceinline__ float4 times(const float4& a, float b) {
  return make_float4(__fmul_rn(a.x, b), __fmul_rn(a.y, b), __fmul_rn(a.z, b), __fmul_rn(a.w, b));
}
__device__ __forceinline__ float squares(float sum, const float4& a) {
  sum = __fadd_rn(sum, __fmul_rn(a.x, a.x));
  sum = __fadd_rn(sum, __fmul_rn(a.y, a.y));
  sum = __fadd_rn(sum, __fmul_rn(a.z, a.z));
  return __fadd_rn(sum, __fmul_rn(a.w, a.w));
}

// What a row's experts add at these eight columns.
__device__ __forceinline__ Eight expert_sum(const ExpertParts& experts, int row, int hidden, int column) {
  Eight sum{make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
  bool any = false;
  for (int choice = 0; choice < experts.top_k; ++choice) {
    const int slot = row * experts.top_k + choice;
    if (experts.expert_ids[slot] < 0) continue;
    const float weight = experts.expert_weights[slot];
    const Eight y = load_eight(experts.products +
                               static_cast<std::size_t>(slot) * static_cast<std::size_t>(hidden) + column);
    const Eight term{times(y.low, weight), times(y.high, weight)};
    sum = any ? Eight{add(sum.low, term.low), add(sum.high, term.high)} : term;
    any = true;
  }
  return sum;
}

// Each thread's `own`, in the order of the header, to all threads.
__device__ __forceinline__ float sum_of_block(float own) {
  __shared__ float of_warp[norm_warps];
  for (int apart = 16; apart > 0; apart /= 2) own = __fadd_rn(own, __shfl_xor_sync(0xffffffffu, own, apart));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's sum is there
  float sum = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < norm_warps; ++warp) sum = __fadd_rn(sum, of_warp[warp]);
  return sum;
}

__device__ __forceinline__ std::uint32_t scaled_pair(float a, float b, float scale, std::uint32_t weights) {
  return ptx::pack_bf16x2(__fmul_rn(__fmul_rn(a, scale), __uint_as_float(weights << 16)),
                          __fmul_rn(__fmul_rn(b, scale), __uint_as_float(weights & 0xffff0000u)));
}

__global__ void __launch_bounds__(norm_threads)
    add_rms_norm_rows(const __grid_constant__ AddRmsNormCudaArgs args) {
  float* const x = reinterpret_cast<float*>(ptx::dynamic_shared());  // [hidden]
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x), first = static_cast<int>(threadIdx.x) * 8;
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.hidden);
  if (row == 0 && threadIdx.x == 0 && args.experts.arrived != nullptr) *args.experts.arrived = 0;
  float own = 0;
  for (int column = first; column < args.hidden; column += norm_threads * 8) {
    float* const residual = args.residual + at + column;
    Eight eight = load_eight(residual);
    if (args.delta != nullptr || args.experts.products != nullptr) {
      const Eight more = args.delta != nullptr ? load_eight(args.delta + at + column)
                                               : expert_sum(args.experts, row, args.hidden, column);
      eight = {add(eight.low, more.low), add(eight.high, more.high)};
      *reinterpret_cast<float4*>(residual) = eight.low;
      *reinterpret_cast<float4*>(residual + 4) = eight.high;
    }
    *reinterpret_cast<float4*>(x + column) = eight.low;
    *reinterpret_cast<float4*>(x + column + 4) = eight.high;
    own = squares(squares(own, eight.low), eight.high);
  }
  const float mean = sum_of_block(own) / static_cast<float>(args.hidden);
  const float scale = 1.0f / sqrtf(mean + args.eps);
  const int blocks = DenseShape{0, args.hidden}.blocks();
  const int past = max(blocks * dense_k, args.out == nullptr ? 0 : args.out_stride);
  for (int column = first; column < past; column += norm_threads * 8) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (column < args.hidden) {
      const Eight eight = load_eight(x + column);
      const uint4 weights = *reinterpret_cast<const uint4*>(args.weight + column);
      words = make_uint4(scaled_pair(eight.low.x, eight.low.y, scale, weights.x),
                         scaled_pair(eight.low.z, eight.low.w, scale, weights.y),
                         scaled_pair(eight.high.x, eight.high.y, scale, weights.z),
                         scaled_pair(eight.high.z, eight.high.w, scale, weights.w));
    }
    if (args.out != nullptr && column < args.out_stride) {
      *reinterpret_cast<uint4*>(
          args.out + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.out_stride) + column) =
          words;
    }
    if (args.out_tiles != nullptr && column < blocks * dense_k)
      *reinterpret_cast<uint4*>(args.out_tiles + token_offset(blocks, row, column)) = words;
  }
}

}  // namespace

Status add_rms_norm_cuda(const AddRmsNormCudaArgs& args, cudaStream_t stream) {
  constexpr int most = 12280;  // the shared memory that a block has without asking for more
  if (args.hidden < 8 || args.hidden % 8 != 0 || args.hidden > most) {
    return invalid_argument("a norm takes a multiple of 8 columns up to " + std::to_string(most) + ", not " +
                            std::to_string(args.hidden));
  }
  if (args.out != nullptr && (args.out_stride < args.hidden || args.out_stride % 8 != 0)) {
    return invalid_argument("a norm of " + std::to_string(args.hidden) +
                            " columns needs a stride of as many, a multiple of 8, not " +
                            std::to_string(args.out_stride));
  }
  if (args.delta != nullptr && args.experts.products != nullptr)
    return invalid_argument("a residual takes in one block's output at a time");
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows)),
                 .threads = norm_threads,
                 .shared_bytes = static_cast<std::size_t>(args.hidden) * sizeof(float),
                 .stream = stream,
                 .overlaps = true},
                add_rms_norm_rows, args);
  return {};
}

}  // namespace nibble
