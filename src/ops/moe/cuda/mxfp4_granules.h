// MXFP4 in granules (granules.h): 32 lanes x 16 bytes of codes and 16 rows x 2 bytes of scales a k64 block,
// 544 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/mxfp4.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

// The stored byte of a scale is the exponent field of the bfloat16 that a placed pair is multiplied by:
// 2^(scale - 127) x 2^126, less the matrix's exponent shift. 255 stands for a scale that is NaN: infinity,
// and with it the packing zeroes the block's codes, whose products are then NaN.
NIBBLE_HOST_DEVICE constexpr std::uint8_t granule_scale_byte(std::uint8_t scale, int exponent_shift) {
  if (scale == E8m0::nan_bits) return 255;
  const int field = int{scale} + 126 - exponent_shift;
  return static_cast<std::uint8_t>(field < 0 ? 0 : field > 254 ? 254 : field);
}

// Of scales over codes that are not all zero, and not NaN: over zeros any scale says the same. All zero where
// none was seen.
struct Mxfp4ScaleRange {
  std::uint32_t largest = 0;
  std::uint32_t below_nan = 0;  // 255 less the least

  constexpr int least() const { return 255 - static_cast<int>(below_nan); }
};

// The shift that keeps a matrix's largest scale within a bfloat16 multiplier: 0 for scales up to 2.
constexpr int granule_exponent_shift(const Mxfp4ScaleRange& range) {
  return range.largest > 128 ? static_cast<int>(range.largest) - 128 : 0;
}

// Shifted weights are smaller than what they stand for by up to 2^126. As far below the largest as this no
// bit of theirs or of their products' sums is lost, unless activations are below 2^-40.
inline constexpr int granule_scale_span = 86;
constexpr bool granule_scales_fit(const Mxfp4ScaleRange& range) {
  return granule_exponent_shift(range) == 0 ||
         static_cast<int>(range.largest) - range.least() <= granule_scale_span;
}

struct Mxfp4GranuleLayout {
  static constexpr std::string_view tag = "mxfp4_granules";
  using Pairs = E2m1Pairs;
  using Stored = std::uint8_t;
  static constexpr int scale_group = mxfp4_block;

  NIBBLE_HOST_DEVICE static constexpr std::uint32_t multiplier(std::uint8_t stored) {
    return std::uint32_t{stored} * 0x00800080u;
  }

  struct SumFactor {  // 2^exponent_shift
    float value;
    NIBBLE_HOST_DEVICE constexpr PairFactors of(int) const { return {value, value}; }
  };

  struct ScalePacking {
    int exponent_shift = 0;
    NIBBLE_HOST_DEVICE constexpr std::uint8_t stored(std::uint8_t scale) const {
      return granule_scale_byte(scale, exponent_shift);
    }
    NIBBLE_HOST_DEVICE static constexpr CodeChange change(std::uint8_t scale) {
      return {.keep = static_cast<std::uint8_t>(scale == E8m0::nan_bits ? 0 : 0xff)};
    }
  };
};
using Mxfp4GranuleShape = GranuleShapeOf<Mxfp4GranuleLayout>;

// Matrices of one shape in this layout, an expert after the other, on the device or on the host.
struct Mxfp4Granules {
  using Layout = Mxfp4GranuleLayout;
  const std::uint8_t* data = nullptr;  // [experts, shape.bytes()]
  int experts = 0;
  Mxfp4GranuleShape shape;
  int exponent_shift = 0;  // the weights are what the bytes say times 2^exponent_shift

  Layout::SumFactor factor() const { return {__builtin_ldexpf(1.0f, exponent_shift)}; }
};

// Packs one matrix on the host: the oracle of the device's repacking. out: [shape.bytes()].
void pack_granules(const Mxfp4Checkpoint& matrix, int exponent_shift, std::span<std::uint8_t> out);

// The value of (row, col) of a matrix as the kernels read it: placed, then multiplied by its scale.
float granule_value(const Mxfp4Granules& matrices, int expert, int row, int col);

}  // namespace nibble
