// A thread eight columns of a row. Bytes: 8 in and 2 out a column.
#include <cuda_bf16.h>

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/gated_mlp/cuda/gated_mlp_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {
namespace {

constexpr int gate_threads = 128;

__global__ void __launch_bounds__(gate_threads) gate_rows(const __grid_constant__ GateRowsCudaArgs args) {
  const int blocks = DenseShape{0, args.width}.blocks(), eights = blocks * (dense_k / 8);
  const int at = static_cast<int>(blockIdx.x) * gate_threads + static_cast<int>(threadIdx.x);
  const int row = at / eights, column = (at - row * eights) * 8;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  const float* const gate =
      args.gate_up + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride) + column;
  const float* const up = gate + args.up;
  alignas(16) float gates[8] = {};
  alignas(16) float ups[8] = {};
  if (column + 8 <= args.width) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float4*>(gates + 4 * half) = *reinterpret_cast<const float4*>(gate + 4 * half);
      *reinterpret_cast<float4*>(ups + 4 * half) = *reinterpret_cast<const float4*>(up + 4 * half);
    }
  } else {
    for (int i = 0; column + i < args.width; ++i) {
      gates[i] = gate[i];
      ups[i] = up[i];
    }
  }
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = ptx::pack_bf16x2(gated_on_device(gates[2 * i], ups[2 * i], args.unit),
                                gated_on_device(gates[2 * i + 1], ups[2 * i + 1], args.unit));
  }
  // Of zeros beyond the width the unit makes zeros.
  *reinterpret_cast<uint4*>(args.out + token_offset(blocks, row, column)) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace

Status gate_rows_cuda(const GateRowsCudaArgs& args, cudaStream_t stream) {
  if (args.stride % 4 != 0 || args.up % 4 != 0 || args.up < args.width ||
      args.stride < args.up + args.width) {
    return invalid_argument("a feed-forward's gates and ups begin at multiples of 4 columns, " +
                            std::to_string(args.width) + " of each, not at 0 and " + std::to_string(args.up) +
                            " of " + std::to_string(args.stride));
  }
  if (args.rows == 0) return {};
  const int pieces = args.rows * DenseShape{0, args.width}.blocks() * (dense_k / 8);
  launch_kernel({.blocks = dim3(static_cast<unsigned>((pieces + gate_threads - 1) / gate_threads)),
                 .threads = gate_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                gate_rows, args);
  return {};
}

}  // namespace nibble
