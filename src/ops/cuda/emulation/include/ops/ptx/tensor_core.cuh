// The twins of src/ops/ptx/tensor_core.cuh on the emulation.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline float half_of(std::uint32_t pair, int half) {
  return Bf16{static_cast<std::uint16_t>(pair >> (16 * half))}.to_float();
}

inline void mma_m16n8k16_bf16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  emulation::LaneData own{{a0, a1, a2, a3, b0, b1}};
  for (int i = 0; i < 4; ++i) own.words[6 + i] = std::bit_cast<std::uint32_t>(sums[i]);
  const auto multiply = [](emulation::Lanes& lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const std::uint32_t* words = lanes[lane].words;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = half_of(words[i], half);
        for (int i = 0; i < 2; ++i) b[2 * t + 8 * i + half][g] = half_of(words[4 + i], half);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        float sum = std::bit_cast<float>(lanes[lane].words[6 + i]);
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        lanes[lane].words[6 + i] = std::bit_cast<std::uint32_t>(sum);
      }
    }
  };
  const emulation::Lanes& lanes = emulation::exchange(own, multiply);
  for (int i = 0; i < 4; ++i)
    sums[i] = std::bit_cast<float>(lanes[emulation::thread_index() % 32].words[6 + i]);
}

inline std::uint32_t choose_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) {
  return (a & mask) | (b & ~mask);
}

inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int half = 0; half < 2; ++half) {
    product |= std::uint32_t{Bf16::from_float(half_of(a, half) * half_of(b, half)).bits} << (16 * half);
  }
  return product;
}

// In double precision products and what is taken off them are exact for factors such as the kernels have.
inline std::uint32_t multiply_subtract_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t difference = 0;
  for (int half = 0; half < 2; ++half) {
    const double exact = double{half_of(a, half)} * double{half_of(b, half)} - double{half_of(c, half)};
    difference |= std::uint32_t{Bf16::from_float(static_cast<float>(exact)).bits} << (16 * half);
  }
  return difference;
}

inline std::uint32_t pack_bf16x2(float low, float high) {
  return Bf16::from_float(low).bits | std::uint32_t{Bf16::from_float(high).bits} << 16;
}
inline std::uint32_t bf16x2_of_e4m3x2(std::uint16_t codes) {
  return pack_bf16x2(E4m3{static_cast<std::uint8_t>(codes)}.to_float(),
                     E4m3{static_cast<std::uint8_t>(codes >> 8)}.to_float());
}
// Of a NaN the one without a sign.
inline std::uint8_t e4m3_of(float value) {
  return std::isnan(value) ? std::uint8_t{0x7f} : E4m3::from_float(value).bits;
}
inline std::uint32_t sign_extended_low_bytes(std::uint32_t word) {
  return (word & 0x00ff00ffu) | ((word & 0x80u) != 0 ? 0xff00u : 0) |
         ((word & 0x800000u) != 0 ? 0xff000000u : 0);
}
inline std::uint16_t e4m3x2_of(float low, float high) {
  return static_cast<std::uint16_t>(e4m3_of(low) | e4m3_of(high) << 8);
}
inline float exp2_fast(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

}  // namespace nibble::ptx
