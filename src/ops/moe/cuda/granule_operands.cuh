// What a lane reads of a granule's k64 block, as operands of the tensor core.
#pragma once

#include <cstdint>

#include "ops/moe/cuda/granules.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

template <class Pairs>
__device__ __forceinline__ PlacedPairs placed_pairs(std::uint32_t first, std::uint32_t second) {
  if constexpr (Pairs::less == 0) {
    return place_pairs(first, second, ptx::choose_bits(first, second, granule_merge_mask));
  } else {
    return Pairs::placed(first, second);
  }
}

// A placed pair's weights.
template <class Pairs>
__device__ __forceinline__ std::uint32_t weights_of(std::uint32_t placed, std::uint32_t multiplier) {
  if constexpr (Pairs::less == 0) {
    return ptx::multiply_bf16x2(placed, multiplier);
  } else {
    return ptx::multiply_bf16x2(ptx::add_bf16x2(placed, Pairs::minus_less), multiplier);
  }
}

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
__device__ __forceinline__ std::uint32_t even_multiplier(std::uint32_t scales) {
  return Layout::multiplier(static_cast<typename Layout::Stored>(scales));
}
template <class Layout>
__device__ __forceinline__ std::uint32_t odd_multiplier(std::uint32_t scales) {
  return Layout::multiplier(
      static_cast<typename Layout::Stored>(scales >> (8 * granule_scale_bytes<Layout>)));
}

}  // namespace nibble
