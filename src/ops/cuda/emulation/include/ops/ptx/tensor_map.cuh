// The twin of src/ops/ptx/tensor_map.cuh on the emulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline constexpr int box_bytes = 1024;

struct TensorMap {
  const std::uint8_t* matrix;
  std::size_t row_bytes;
  int rows, box_rows;

  const std::uint8_t* at(int column, int row) const {
    alignas(16) static const std::uint8_t zeros[box_bytes] = {};
    if (row >= rows) return zeros;
    return matrix + static_cast<std::size_t>(row) * row_bytes + static_cast<std::size_t>(column) * box_bytes;
  }
};

inline TensorMap box_map(const void* matrix, std::size_t row_bytes, int rows, int box_rows) {
  if (row_bytes % box_bytes != 0 || box_rows > 256) emulation::stop("a map of other boxes");
  return {static_cast<const std::uint8_t*>(matrix), row_bytes, rows, box_rows};
}

inline void prefetch_map(const TensorMap&) {}
inline void box_copy_to_shared(void* shared, const TensorMap& map, int column, int row,
                               std::uint64_t* barrier) {
  for (int i = 0; i < map.box_rows; ++i) {
    emulation::copy_to_shared(static_cast<std::uint8_t*>(shared) + i * box_bytes, map.at(column, row + i),
                              box_bytes, barrier);
  }
}
inline void box_copy_to_blocks(void* shared, const TensorMap& map, int column, int row,
                               std::uint64_t* barrier, unsigned ranks) {
  for (int i = 0; i < map.box_rows; ++i) {
    emulation::copy_to_blocks(static_cast<std::uint8_t*>(shared) + i * box_bytes, map.at(column, row + i),
                              box_bytes, barrier, ranks);
  }
}

}  // namespace nibble::ptx
