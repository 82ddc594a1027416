// The twins of src/ops/ptx/warpgroup_swizzled.cuh on the emulation.
#pragma once

#include <cstdint>

#include "ops/ptx/warpgroup.cuh"

namespace nibble::ptx {

inline constexpr int swizzled_row_bytes = 128, swizzled_eight_bytes = 8 * swizzled_row_bytes;

// The word of a tile that lies at this place but for the swizzle, which goes by addresses.
inline std::uint32_t swizzled_word(const std::uint8_t* place) {
  auto address = reinterpret_cast<std::uintptr_t>(place);
  address ^= (address >> 7 & 7) << 4;
  return emulation::operand_of_products(reinterpret_cast<const std::uint8_t*>(address));
}
inline const std::uint8_t* tile_begin(const void* tile) {
  if (reinterpret_cast<std::uintptr_t>(tile) % swizzled_eight_bytes != 0)
    emulation::stop("a misaligned tile of wgmma");
  return static_cast<const std::uint8_t*>(tile);
}

struct TileRows {
  const std::uint8_t* begin;

  explicit TileRows(const void* tile) : begin(tile_begin(tile)) {}
  TileRows at(unsigned bytes) const {
    TileRows moved = *this;
    moved.begin += bytes;
    return moved;
  }
  std::uint32_t pair(unsigned row, unsigned half, unsigned pair) const {
    return swizzled_word(begin + row * swizzled_row_bytes + half * 16 + pair * 4);
  }
};

struct TileColumns {
  const std::uint8_t* begin;
  unsigned tile_bytes;

  TileColumns(const void* tile, unsigned bytes) : begin(tile_begin(tile)), tile_bytes(bytes) {}
  TileColumns at(unsigned bytes) const {
    TileColumns moved = *this;
    moved.begin += bytes;
    return moved;
  }
  std::uint32_t one(unsigned k, unsigned column) const {
    const std::uint32_t word =
        swizzled_word(begin + column / 64 * tile_bytes + k * swizzled_row_bytes + column % 64 / 2 * 4);
    return column % 2 == 0 ? word & 0xffffu : word >> 16;
  }
  std::uint32_t pair(unsigned column, unsigned half, unsigned pair) const {
    const unsigned k = half * 8 + pair * 2;
    return one(k, column) | one(k + 1, column) << 16;
  }
};

// a(row, half, pair), b(column, half, pair): two bfloat16 of the product.
template <int count, class Rows, class Columns>
void wgmma_of_pairs(float (&sums)[count], const Rows& a, const Columns& b, bool add) {
  const unsigned g = emulation::thread_index() % 32 / 4, t = emulation::thread_index() % 4;
  const unsigned row = emulation::thread_index() / 32 % 4 * 16 + g;
  emulation::begin_product(sums);
  for (int tile = 0; tile < count / 4; ++tile) {
    const unsigned column = 8 * static_cast<unsigned>(tile) + g;
    float(&four)[4] = *reinterpret_cast<float(*)[4]>(&sums[4 * tile]);
    if (!add) std::memset(four, 0, sizeof four);
    mma_m16n8k16_bf16(four, a(row, 0, t), a(row + 8, 0, t), a(row, 1, t), a(row + 8, 1, t), b(column, 0, t),
                      b(column, 1, t));
  }
  emulation::end_product(sums, count);
}

template <int count, class Columns>
void wgmma_bf16(float (&sums)[count], const TileRows& a, const Columns& b, bool add) {
  wgmma_of_pairs(
      sums, [&](unsigned row, unsigned half, unsigned pair) { return a.pair(row, half, pair); },
      [&](unsigned column, unsigned half, unsigned pair) { return b.pair(column, half, pair); }, add);
}
template <int count>
void wgmma_bf16(float (&sums)[count], const TileColumns& a, std::uint64_t b, bool add) {
  wgmma_of_pairs(
      sums, [&](unsigned row, unsigned half, unsigned pair) { return a.pair(row, half, pair); },
      [&](unsigned column, unsigned half, unsigned pair) { return wgmma_pair(b, column, half, pair); }, add);
}

}  // namespace nibble::ptx
