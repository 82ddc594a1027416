// A thread eight columns of a row. Bytes: 8 a column.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/output_gate/cuda/gate_heads_cuda.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {
namespace {

constexpr int gate_threads = 128;

__device__ __forceinline__ float gated(float value, float gate) {
  return __fmul_rn(value, 1.0f / (1.0f + expf(-gate)));
}
__device__ __forceinline__ std::uint32_t gated_pair(std::uint32_t pair, float low, float high) {
  return ptx::pack_bf16x2(gated(__uint_as_float(pair << 16), low),
                          gated(__uint_as_float(pair & 0xffff0000u), high));
}

__global__ void __launch_bounds__(gate_threads) gate_heads(const __grid_constant__ GateHeadsCudaArgs args) {
  ptx::grid_launch_dependents();
  const int width = args.heads * args.head_dim, eights = width / 8;
  const int at = static_cast<int>(blockIdx.x) * gate_threads + static_cast<int>(threadIdx.x);
  const int row = at / eights, column = at % eights * 8;
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  const int head = column / args.head_dim;
  const float* const gates = args.gates +
                             static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride) +
                             head * args.head_dim + column;
  const float4 low = *reinterpret_cast<const float4*>(gates),
               high = *reinterpret_cast<const float4*>(gates + 4);
  uint4& eight = *reinterpret_cast<uint4*>(args.out + token_offset(width / dense_k, row, column));
  eight = make_uint4(gated_pair(eight.x, low.x, low.y), gated_pair(eight.y, low.z, low.w),
                     gated_pair(eight.z, high.x, high.y), gated_pair(eight.w, high.z, high.w));
}

}  // namespace

Status gate_heads_cuda(const GateHeadsCudaArgs& args, cudaStream_t stream) {
  if (args.head_dim % dense_k != 0 || args.stride % 4 != 0)
    return invalid_argument("gated heads have a multiple of 64 dimensions, not " +
                            std::to_string(args.head_dim));
  const int threads = args.rows * args.heads * args.head_dim / 8;
  if (threads == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>((threads + gate_threads - 1) / gate_threads)),
                 .threads = gate_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                gate_heads, args);
  return {};
}

}  // namespace nibble
