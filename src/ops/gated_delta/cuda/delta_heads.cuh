// From a row of projections to the rule's inputs, a warp a head: short convolution, silu, unit keys and
// queries; and a head's gates.
#pragma once

#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"

namespace nibble {

// A lane's channels of a head: so many neighbours.
template <int dims>
class HeadChannels {
 public:
  static constexpr int count = dims % 128 == 0 ? 4 : 1;
  static_assert(dims <= 32 * count);
  using Lane = float[count];                   // of a row
  using Taps = float[delta_cuda_taps][count];  // of as many rows, the newest last

  __device__ __forceinline__ static bool has(int lane) { return lane * count < dims; }

  // What the lane has of a head's row; zeros of none.
  __device__ __forceinline__ static void fetch(Lane& to, const float* from, int lane) {
    const bool is_there = from != nullptr && has(lane);
    if constexpr (count == 4) {
      float4 four = make_float4(0, 0, 0, 0);
      if (is_there) four = *reinterpret_cast<const float4*>(from + 4 * lane);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = is_there ? from[lane] : 0;
    }
  }

  // Of the row whose input is the last.
  __device__ __forceinline__ void convolve(const Taps& weights, const Taps& inputs) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      x_[i] = 0;
#pragma unroll
      for (int tap = 0; tap < delta_cuda_taps; ++tap) x_[i] = fmaf(weights[tap][i], inputs[tap][i], x_[i]);
    }
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
  // As queries are, beside unit keys.
  __device__ __forceinline__ static float query_length() { return 1.0f / sqrtf(static_cast<float>(dims)); }

  __device__ __forceinline__ void store(float* to, int lane) const {
    if (!has(lane)) return;
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(x_[0], x_[1], x_[2], x_[3]);
    else
      to[lane] = x_[0];
  }
  // As terms of products: the row of its chunk.
  __device__ __forceinline__ void store_terms(uint4* to, int row, int lane) const {
    using Row = KeyRows<dims>;
    if (!has(lane)) return;
    const auto place = [&](bool low) {
      return to + unit_place<Row::units>(row, (low ? Row::units / 2 : 0) + lane * count / 8);
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

// The weights of tap `tap` of delta_cuda_taps, from a head's first channel on; null if the filter is shorter.
__device__ __forceinline__ const float* tap_weights(const DeltaKernelArgs& args, int tap, int channel) {
  const int of_filter = args.taps - delta_cuda_taps + tap;
  return of_filter < 0 ? nullptr : args.convolution + std::ptrdiff_t{of_filter} * args.channels + channel;
}
// The input that an earlier step kept for `position`, which is at least 0.
__device__ __forceinline__ float* kept_input(const DeltaKernelArgs& args, int slot, int position,
                                             int channel) {
  return in_slot(args.slots.inputs, args.slot_bytes, slot) +
         std::ptrdiff_t{position % args.taps} * args.channels + channel;
}

// A head of values at a row.
struct HeadGates {
  double decay;  // g
  float beta;
};
__device__ __forceinline__ HeadGates gates_of(const DeltaKernelArgs& args, int row, int head) {
  const float* const gates =
      args.gates + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.gates_stride);
  const int key_head = head / args.served(), within = head % args.served();
  const float a = gates[column_of(args.columns.a, key_head, within)],
              b = gates[column_of(args.columns.b, key_head, within)];
  return {-static_cast<double>(args.rate[head]) *
              softplus_of(static_cast<double>(a) + static_cast<double>(args.bias[head])),
          delta_sigmoid_of(b)};
}

}  // namespace nibble
