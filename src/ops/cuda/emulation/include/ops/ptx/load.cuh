// The twin of src/ops/ptx/load.cuh on the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

// The 16 bytes that each lane names.
inline const emulation::Lanes& rows_of_lanes(const void* row) {
  if (reinterpret_cast<std::uint64_t>(row) % 16 != 0) emulation::stop("a misaligned row of a matrix");
  emulation::LaneData own;
  std::memcpy(own.words, row, 16);
  return emulation::exchange(own);
}
inline void load_matrices(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d,
                          const void* row) {
  const emulation::Lanes& lanes = rows_of_lanes(row);
  const unsigned lane = emulation::thread_index() % 32;
  std::uint32_t* const found[4] = {&a, &b, &c, &d};
  for (unsigned i = 0; i < 4; ++i) *found[i] = lanes[8 * i + lane / 4].words[lane % 4];
}
inline void load_turned_matrices(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d,
                                 const void* row) {
  const emulation::Lanes& lanes = rows_of_lanes(row);
  const unsigned lane = emulation::thread_index() % 32, column = lane / 4, pair = lane % 4;
  std::uint32_t* const found[4] = {&a, &b, &c, &d};
  for (unsigned i = 0; i < 4; ++i) {
    const auto half = [&](unsigned r) {
      return lanes[8 * i + r].words[column / 2] >> (column % 2 * 16) & 0xffffu;
    };
    *found[i] = half(2 * pair) | half(2 * pair + 1) << 16;
  }
}

}  // namespace nibble::ptx
