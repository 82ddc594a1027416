// From a row of projections to the rule's inputs, a warp a head: short convolution, silu, unit keys and
// queries; and a head's gates.
#pragma once

#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"

namespace nibble {

// Neighbours that a lane has of a head's channels.
template <int dims>
inline constexpr int lane_channels = dims % 128 == 0 ? 4 : 1;

template <int count>
class LaneChannels {
 public:
  using Lane = float[count];                   // of a row
  using Taps = float[delta_cuda_taps][count];  // of as many rows, the newest last

  // What the lane has of a head's row; zeros of none, which is null.
  __device__ __forceinline__ static void fetch(Lane& to, const float* from, int lane) {
    if constexpr (count == 4) {
      float4 four = make_float4(0, 0, 0, 0);
      if (from != nullptr) four = *reinterpret_cast<const float4*>(from + 4 * lane);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = from != nullptr ? from[lane] : 0;
    }
  }

  // Of the row whose input is the last.
  __device__ __forceinline__ void convolve(const Taps& weights, const Taps& inputs) {
    begin();
#pragma unroll
    for (int tap = 0; tap < delta_cuda_taps; ++tap) take_tap(weights[tap], inputs[tap]);
  }
  // The same a tap at a time.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < count; ++i) x_[i] = 0;
  }
  __device__ __forceinline__ void take_tap(const Lane& weights, const Lane& input) {
#pragma unroll
    for (int i = 0; i < count; ++i) x_[i] = fmaf(weights[i], input[i], x_[i]);
  }
  __device__ __forceinline__ void activate() {
#pragma unroll
    for (int i = 0; i < count; ++i) x_[i] = delta_silu_of(x_[i]);
  }
  __device__ __forceinline__ void normalise(float further) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) squares = fmaf(x_[i], x_[i], squares);
    const float scale = ptx::inverse_root_fast(sum_of_lanes(squares) + 1e-6f);
#pragma unroll
    for (int i = 0; i < count; ++i) x_[i] = __fmul_rn(__fmul_rn(x_[i], scale), further);
  }

  __device__ __forceinline__ void store(float* to, int lane) const {
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(x_[0], x_[1], x_[2], x_[3]);
    else
      to[lane] = x_[0];
  }
  // As terms of products, in a row of so many units: the row of its chunk.
  template <int units>
  __device__ __forceinline__ void store_terms(uint4* to, int row, int lane) const {
    const auto place = [&](bool low) {
      return to + unit_place<units>(row, (low ? units / 2 : 0) + lane * count / 8);
    };
    if constexpr (count == 4) {
      const TermPair first = terms_of(x_[0], x_[1]), second = terms_of(x_[2], x_[3]);
      reinterpret_cast<uint2*>(place(false))[lane % 2] = make_uint2(first.high, second.high);
      reinterpret_cast<uint2*>(place(true))[lane % 2] = make_uint2(first.low, second.low);
    } else {
      const TermPair terms = terms_of(x_[0], 0);
      reinterpret_cast<std::uint16_t*>(place(false))[lane % 8] = static_cast<std::uint16_t>(terms.high);
      reinterpret_cast<std::uint16_t*>(place(true))[lane % 8] = static_cast<std::uint16_t>(terms.low);
    }
  }

 private:
  Lane x_;
};

// What queries are multiplied by, beside unit keys.
template <int key_dim>
__device__ __forceinline__ float query_length() {
  return 1.0f / sqrtf(static_cast<float>(key_dim));
}

// The weights of tap `tap` of delta_cuda_taps, from a head's first channel on; null if the filter is shorter.
__device__ __forceinline__ const float* tap_weights(const DeltaKernelArgs& args, int tap, int channel) {
  const int of_filter = args.taps - delta_cuda_taps + tap;
  return of_filter < 0 ? nullptr : args.convolution + std::ptrdiff_t{of_filter} * args.channels + channel;
}

// The inputs of a position that an earlier step kept, or this one keeps.
__device__ __forceinline__ float* kept_input(const DeltaKernelArgs& args, int slot, int position,
                                             int channel) {
  return in_slot(args.slots.inputs, args.slot_bytes, slot) +
         std::ptrdiff_t{input_row(position, args.kept_inputs)} * args.channels + channel;
}

// A head of values at a row.
struct HeadGates {
  double decay;  // g
  float beta;
};
__device__ __forceinline__ HeadGates gates_of(const DeltaKernelArgs& args, int row, const ValueHead& head) {
  const float* const gates = args.gates + std::ptrdiff_t{row} * args.gates_stride;
  const float a = gates[column_of(args.columns.a, head)], b = gates[column_of(args.columns.b, head)];
  const int index = head.index(args);
  return {-static_cast<double>(args.rate[index]) *
              softplus_of(static_cast<double>(a) + static_cast<double>(args.bias[index])),
          delta_sigmoid_of(b)};
}

}  // namespace nibble
