// What a lane reads of a granule's k64 block, as operands of the tensor core.
#pragma once

#include <cstdint>

#include "ops/moe/cuda/granules.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

template <class Pairs>
__device__ __forceinline__ PlacedPairs placed_pairs(std::uint32_t first, std::uint32_t second) {
  if constexpr (Pairs::integers) {
    return Pairs::placed(first, second);
  } else {
    return place_pairs(first, second, ptx::choose_bits(first, second, granule_merge_mask));
  }
}

// A row's scale, in both halves of words.
template <class Layout>
struct LaneScale {
  std::uint32_t multiplier, less = 0;

  __device__ __forceinline__ explicit LaneScale(typename Layout::Stored stored)
      : multiplier(Layout::multiplier(stored)) {
    if constexpr (Layout::Pairs::integers) {
      less = multiplier;
      multiplier = ptx::multiply_bf16x2(multiplier, Layout::of_placed);
    }
  }

  // A placed pair's weights.
  __device__ __forceinline__ std::uint32_t weights(std::uint32_t placed) const {
    if constexpr (Layout::Pairs::integers) {
      return ptx::multiply_subtract_bf16x2(placed, multiplier, less);
    } else {
      return ptx::multiply_bf16x2(placed, multiplier);
    }
  }
};

// The stored scales of a lane's two rows, the even one's in the low bits.
template <class Layout>
__device__ __forceinline__ std::uint32_t load_lane_scales(const std::uint8_t* at) {
  if constexpr (granule_scale_bytes<Layout> == 1) {
    return *reinterpret_cast<const std::uint16_t*>(at);
  } else {
    return *reinterpret_cast<const std::uint32_t*>(at);
  }
}
template <class Layout>
__device__ __forceinline__ LaneScale<Layout> even_scale(std::uint32_t scales) {
  return LaneScale<Layout>(static_cast<typename Layout::Stored>(scales));
}
template <class Layout>
__device__ __forceinline__ LaneScale<Layout> odd_scale(std::uint32_t scales) {
  return LaneScale<Layout>(static_cast<typename Layout::Stored>(scales >> (8 * granule_scale_bytes<Layout>)));
}

}  // namespace nibble
