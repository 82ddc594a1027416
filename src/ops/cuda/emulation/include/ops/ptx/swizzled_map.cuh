// The twin of src/ops/ptx/swizzled_map.cuh on the emulation.
#pragma once

#include "ops/ptx/tensor_map.cuh"

namespace nibble::ptx {

inline constexpr int map_tile_rows = 64, map_tile_columns = 64, map_tile_bytes = 64 * 64 * 2;

// As boxes of sixteen bytes a block.
inline TensorMap swizzled_map(const void* matrix, int columns, int rows) {
  return box_map({.matrix = matrix,
                  .block_bytes = 16,
                  .blocks = columns / 8,
                  .rows = rows,
                  .box_blocks = map_tile_columns / 8,
                  .box_rows = map_tile_rows});
}

inline void tile_copy_to_shared(void* shared, const TensorMap& map, int column, int row,
                                std::uint64_t* barrier) {
  if (reinterpret_cast<std::uintptr_t>(shared) % 1024 != 0) emulation::stop("a misaligned tile");
  map.for_blocks(column / 8, row, [&](int offset, const std::uint8_t* from) {
    emulation::copy_to_shared(static_cast<std::uint8_t*>(shared) + (offset ^ (offset >> 7 & 7) << 4), from,
                              16, barrier);
  });
}

}  // namespace nibble::ptx
