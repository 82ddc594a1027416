// The twin of src/ops/ptx/load.cuh on the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline void load_matrices(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d,
                          const void* row) {
  if (reinterpret_cast<std::uint64_t>(row) % 16 != 0) emulation::stop("a misaligned row of a matrix");
  emulation::LaneData own;
  std::memcpy(own.words, row, 16);
  const emulation::Lanes& lanes = emulation::exchange(own);
  const unsigned lane = emulation::thread_index() % 32;
  std::uint32_t* const found[4] = {&a, &b, &c, &d};
  for (unsigned i = 0; i < 4; ++i) *found[i] = lanes[8 * i + lane / 4].words[lane % 4];
}

}  // namespace nibble::ptx
