// The twin of src/ops/ptx/warpgroup_e4m3.cuh on the emulation, which adds up in float32.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "formats/e4m3.h"
#include "ops/ptx/warpgroup_swizzled.cuh"

namespace nibble::ptx {

inline float code_of(std::uint32_t word, int index) {
  return E4m3{static_cast<std::uint8_t>(word >> (8 * index))}.to_float();
}

inline void mma_m16n8k32_e4m3(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  emulation::LaneData own{{a[0], a[1], a[2], a[3], b0, b1}};
  for (int i = 0; i < 4; ++i) own.words[6 + i] = std::bit_cast<std::uint32_t>(sums[i]);
  const auto multiply = [](emulation::Lanes& lanes) {
    float rows[16][32], columns[32][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const std::uint32_t* words = lanes[lane].words;
      for (int code = 0; code < 4; ++code) {
        for (int i = 0; i < 4; ++i)
          rows[g + 8 * (i % 2)][4 * t + 16 * (i / 2) + code] = code_of(words[i], code);
        for (int i = 0; i < 2; ++i) columns[4 * t + 16 * i + code][g] = code_of(words[4 + i], code);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        float sum = std::bit_cast<float>(lanes[lane].words[6 + i]);
        for (int k = 0; k < 32; ++k) sum += rows[row][k] * columns[k][column];
        lanes[lane].words[6 + i] = std::bit_cast<std::uint32_t>(sum);
      }
    }
  };
  const emulation::Lanes& lanes = emulation::exchange(own, multiply);
  for (int i = 0; i < 4; ++i)
    sums[i] = std::bit_cast<float>(lanes[emulation::thread_index() % 32].words[6 + i]);
}

template <int count>
void wgmma_e4m3(float (&sums)[count], const std::uint32_t (&a)[4], const TileRows& b, bool add) {
  const unsigned g = emulation::thread_index() % 32 / 4, t = emulation::thread_index() % 4;
  emulation::begin_product(sums);
  for (int tile = 0; tile < count / 4; ++tile) {
    const unsigned column = 8 * static_cast<unsigned>(tile) + g;
    float(&four)[4] = *reinterpret_cast<float(*)[4]>(&sums[4 * tile]);
    if (!add) std::memset(four, 0, sizeof four);
    mma_m16n8k32_e4m3(four, a, b.pair(column, 0, t), b.pair(column, 1, t));
  }
  emulation::end_product(sums, count);
}

}  // namespace nibble::ptx
