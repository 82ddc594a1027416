// Integers of four bits (formats/int4.h) in granules (granules.h): 32 lanes x 16 bytes of codes and 16 rows x
// 2 bfloat16 scales a k64 block, 576 bytes.
//
// A weight is what compressed-tensors unpacks, (code - 8) x scale rounded to bfloat16 once: that product is
// the tensor core's operand, and nothing multiplies the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/int4.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

struct Int4GranuleLayout {
  using Pairs = IntegerPairs;
  using Stored = std::uint16_t;  // a bfloat16's bits
  static constexpr int scale_group = int4_group;

  NIBBLE_HOST_DEVICE static constexpr std::uint32_t multiplier(Stored stored) {
    return std::uint32_t{stored} * 0x00010001u;
  }

  struct SumFactor {
    NIBBLE_HOST_DEVICE constexpr PairFactors of(int) const { return {1.0f, 1.0f}; }
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
