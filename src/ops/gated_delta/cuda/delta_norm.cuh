// The norm and the gate of what a head gives.
#pragma once

#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

// By a warp: what a head of a row gives -> its place among the input's tiles.
template <int value_dim>
class HeadOut {
  static constexpr int count = value_dim % 128 == 0 ? 4 : 1;  // neighbours that a lane has
  static_assert(value_dim <= 32 * count);

 public:
  // Where a row of projections has the head's gates.
  __device__ __forceinline__ static const float* gates_of(const DeltaKernelArgs& args, int row,
                                                          const ValueHead& head) {
    return args.projected + std::ptrdiff_t{row} * args.projected_stride + column_of(args.columns.z, head);
  }
  // The head's. On its way when it returns.
  struct From {
    const float *x, *gates, *norm;
  };
  __device__ __forceinline__ void load(const From& from, int row, int head, int lane) {
    has_ = lane * count < value_dim;
    first_ = has_ ? lane * count : 0;
    row_ = row;
    head_ = head;
    load(own_, from.x);
    load(gates_, from.gates);
    load(weights_, from.norm);
  }
  __device__ __forceinline__ void put(const DeltaKernelArgs& args) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) squares = fmaf(own_[i], own_[i], squares);
    const float scale =
        ptx::inverse_root_fast(sum_of_lanes(squares) / static_cast<float>(value_dim) + args.eps);
    const auto gated = [&](int i) {
      return __fmul_rn(__fmul_rn(__fmul_rn(own_[i], scale), weights_[i]), delta_silu_of(gates_[i]));
    };
    const int blocks = (args.value_heads * value_dim + dense_k - 1) / dense_k;
    std::uint8_t* const to = args.out + token_offset(blocks, row_, head_ * value_dim + first_);
    if (!has_) return;
    if constexpr (count == 4)
      *reinterpret_cast<uint2*>(to) =
          make_uint2(ptx::pack_bf16x2(gated(0), gated(1)), ptx::pack_bf16x2(gated(2), gated(3)));
    else
      *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(ptx::pack_bf16x2(gated(0), 0.0f));
  }

 private:
  __device__ __forceinline__ void load(float (&to)[count], const float* from) const {
    if constexpr (count == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + first_);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = has_ ? from[first_] : 0;
    }
  }

  bool has_;
  int first_, row_, head_;
  float own_[count], gates_[count], weights_[count];
};

}  // namespace nibble
