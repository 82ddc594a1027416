// The norm and the gate of what a head gives.
#pragma once

#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

// By a warp: x, of a row's head -> its place among the input's tiles.
template <int value_dim>
__device__ __forceinline__ void put_head_out(const DeltaKernelArgs& args, int row, int head, const float* x,
                                             int lane) {
  constexpr int count = (value_dim + 31) / 32;
  const auto has = [&](int i) { return value_dim % 32 == 0 || lane + 32 * i < value_dim; };
  float own[count], squares = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    own[i] = has(i) ? x[lane + 32 * i] : 0;
    squares = fmaf(own[i], own[i], squares);
  }
  const float scale = 1.0f / sqrtf(sum_of_lanes(squares) / static_cast<float>(value_dim) + args.eps);
  const float* const z = args.projected +
                         static_cast<std::size_t>(row) * static_cast<std::size_t>(args.projected_stride) +
                         column_of(args.columns.z, head / args.served(), head % args.served());
  const int blocks = (args.value_heads * value_dim + dense_k - 1) / dense_k;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (!has(i)) continue;
    const int dimension = lane + 32 * i;
    const float normed = __fmul_rn(__fmul_rn(own[i], scale), args.norm[dimension]);
    const std::uint32_t rounded = ptx::pack_bf16x2(__fmul_rn(normed, delta_silu_of(z[dimension])), 0.0f);
    *reinterpret_cast<std::uint16_t*>(args.out + token_offset(blocks, row, head * value_dim + dimension)) =
        static_cast<std::uint16_t>(rounded);
  }
}

}  // namespace nibble
