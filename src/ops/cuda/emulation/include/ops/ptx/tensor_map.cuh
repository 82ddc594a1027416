// The twin of src/ops/ptx/tensor_map.cuh on the emulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

struct Boxes {
  const void* matrix = nullptr;
  int block_bytes = 0;
  int blocks = 0, rows = 0;
  int box_blocks = 1, box_rows = 1;
};

struct TensorMap {
  Boxes of;

  const std::uint8_t* at(int block, int row) const {
    alignas(16) static const std::uint8_t zeros[1024] = {};
    if (row >= of.rows || block >= of.blocks) return zeros;
    const std::size_t index =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(of.blocks) + static_cast<std::size_t>(block);
    return static_cast<const std::uint8_t*>(of.matrix) + index * static_cast<std::size_t>(of.block_bytes);
  }
  // Calls copy(offset, from) for each of a box's blocks.
  template <class Copy>
  void for_blocks(int block, int row, const Copy& copy) const {
    int offset = 0;
    for (int r = 0; r < of.box_rows; ++r) {
      for (int b = 0; b < of.box_blocks; ++b, offset += of.block_bytes) copy(offset, at(block + b, row + r));
    }
  }
};

inline TensorMap box_map(const Boxes& of) {
  if (of.block_bytes % 16 != 0 || of.block_bytes > 1024 || of.box_blocks > 256 || of.box_rows > 256 ||
      reinterpret_cast<std::uintptr_t>(of.matrix) % 16 != 0) {
    emulation::stop("a map of other boxes");
  }
  return {of};
}

inline void prefetch_map(const TensorMap&) {}
inline void box_copy_to_shared(void* shared, const TensorMap& map, int block, int row,
                               std::uint64_t* barrier) {
  map.for_blocks(block, row, [&](int offset, const std::uint8_t* from) {
    emulation::copy_to_shared(static_cast<std::uint8_t*>(shared) + offset, from,
                              static_cast<std::uint32_t>(map.of.block_bytes), barrier);
  });
}
inline void box_copy_once_to_shared(void* shared, const TensorMap& map, int block, int row,
                                    std::uint64_t* barrier) {
  box_copy_to_shared(shared, map, block, row, barrier);
}
inline void box_copy_to_blocks(void* shared, const TensorMap& map, int block, int row, std::uint64_t* barrier,
                               unsigned ranks) {
  map.for_blocks(block, row, [&](int offset, const std::uint8_t* from) {
    emulation::copy_to_blocks(static_cast<std::uint8_t*>(shared) + offset, from,
                              static_cast<std::uint32_t>(map.of.block_bytes), barrier, ranks);
  });
}

}  // namespace nibble::ptx
