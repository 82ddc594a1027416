// Integers of four bits (formats/int4.h) in granules (granules.h): 32 lanes x 16 bytes of codes and 16 rows x
// 2 bfloat16 scales a k64 block, 576 bytes.
//
// A weight is what compressed-tensors unpacks, (code - 8) x scale rounded to bfloat16 once: an eighth of it
// is the tensor core's operand, and eight multiplies the sums, exactly. That holds for scales of which 2^127
// times as much is a bfloat16 and an eighth is no subnormal one (int4_scales_fit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/int4.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

// Of magnitudes of scales over codes that are not all zero, as bits of bfloat16: those that are no zero.
struct Int4ScaleRange {
  std::uint32_t largest = 0;
  std::uint32_t below_infinity = 0;  // that of infinity less the least
};
inline constexpr std::uint32_t int4_infinity = 0x7f80, int4_least_scale = 0x0200;  // 2^-123
constexpr bool int4_scales_fit(const Int4ScaleRange& range) {
  constexpr std::uint32_t two = 0x4000;
  return range.largest < two && int4_infinity - range.below_infinity >= int4_least_scale;
}

struct Int4GranuleLayout {
  using Pairs = IntegerPairs;
  using Stored = std::uint16_t;  // a bfloat16's bits
  static constexpr int scale_group = int4_group;
  static constexpr std::uint32_t of_placed = 0x7f007f00u;  // 2^127: what a stored scale of placed codes lacks

  NIBBLE_HOST_DEVICE static constexpr std::uint32_t multiplier(Stored stored) {
    return std::uint32_t{stored} * 0x00010001u;
  }

  struct SumFactor {
    NIBBLE_HOST_DEVICE constexpr PairFactors of(int) const { return {8.0f, 8.0f}; }
  };

  struct ScalePacking {
    NIBBLE_HOST_DEVICE static constexpr Stored stored(Stored scale) { return scale; }
    NIBBLE_HOST_DEVICE static constexpr CodeChange change(Stored) { return {}; }
  };
};
using Int4GranuleShape = GranuleShapeOf<Int4GranuleLayout>;

// Matrices of one shape in this layout, an expert after the other, on the device or on the host.
struct Int4Granules {
  using Layout = Int4GranuleLayout;
  const std::uint8_t* data = nullptr;  // [experts, shape.bytes()]
  int experts = 0;
  Int4GranuleShape shape;

  Layout::SumFactor factor() const { return {}; }
};

// Packs one matrix on the host: the oracle of the device's repacking. out: [shape.bytes()].
void pack_int4_granules(const std::uint8_t* codes,  // [rows, cols / 2]
                        const Bf16* scales,         // [rows, cols / 32]
                        const Int4GranuleShape& shape, std::span<std::uint8_t> out);

// The value of (row, col) of a matrix as the kernels read it.
float granule_value(const Int4Granules& matrices, int expert, int row, int col);

}  // namespace nibble
