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
  constexpr int count = value_dim % 128 == 0 ? 4 : 1;  // neighbours that a lane has
  static_assert(value_dim <= 32 * count);
  const bool has = lane * count < value_dim;
  const int first = has ? lane * count : 0;
  const float* const z = args.projected +
                         static_cast<std::size_t>(row) * static_cast<std::size_t>(args.projected_stride) +
                         column_of(args.columns.z, head / args.served(), head % args.served());
  float own[count], gates[count], weights[count];
  const auto load = [&](float(&to)[count], const float* from) {
    if constexpr (count == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + first);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = has ? from[first] : 0;
    }
  };
  load(own, x);
  load(gates, z);
  load(weights, args.norm);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) squares = fmaf(own[i], own[i], squares);
  const float scale = 1.0f / sqrtf(sum_of_lanes(squares) / static_cast<float>(value_dim) + args.eps);
  const auto gated = [&](int i) {
    return __fmul_rn(__fmul_rn(__fmul_rn(own[i], scale), weights[i]), delta_silu_of(gates[i]));
  };
  const int blocks = (args.value_heads * value_dim + dense_k - 1) / dense_k;
  std::uint8_t* const to = args.out + token_offset(blocks, row, head * value_dim + first);
  if (!has) return;
  if constexpr (count == 4)
    *reinterpret_cast<uint2*>(to) =
        make_uint2(ptx::pack_bf16x2(gated(0), gated(1)), ptx::pack_bf16x2(gated(2), gated(3)));
  else
    *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(ptx::pack_bf16x2(gated(0), 0.0f));
}

}  // namespace nibble
