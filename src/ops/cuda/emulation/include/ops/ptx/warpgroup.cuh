// The twins of src/ops/ptx/warpgroup.cuh on the emulation, where a product is done when it returns.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble::ptx {

inline std::uint64_t wgmma_b_operand(const void* shared) { return reinterpret_cast<std::uint64_t>(shared); }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
inline void wgmma_wait(float (&)[64]) {}

inline void wgmma_m64n128k16_bf16(float (&sums)[64], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                  std::uint32_t a3, std::uint64_t b, bool add) {
  const auto* columns = reinterpret_cast<const std::uint8_t*>(b);
  for (int tile = 0; tile < 16; ++tile) {
    const unsigned lane = emulation::thread_index() % 32, t = lane % 4;
    std::uint32_t pairs[2];
    for (unsigned half = 0; half < 2; ++half) {
      std::memcpy(&pairs[half], columns + tile * 256 + half * 128 + lane / 4 * 16 + t * 4, 4);
    }
    float(&four)[4] = *reinterpret_cast<float(*)[4]>(&sums[4 * tile]);
    if (!add) std::memset(four, 0, sizeof four);
    mma_m16n8k16_bf16(four, a0, a1, a2, a3, pairs[0], pairs[1]);
  }
}

}  // namespace nibble::ptx
