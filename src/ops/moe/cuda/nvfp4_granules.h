// NVFP4 in granules (granules.h): 32 lanes x 16 bytes of codes and 16 rows x 4 bytes of scales a k64 block,
// 576 bytes. A lane's 16 elements of a row are the 16 that share a scale.
//
// A weight is code x block scale x tensor scale. The first product has at most six significant bits, two of
// the code's and four of the scale's, and enters the tensor core as a bfloat16 without rounding. The tensor
// scale multiplies the finished float32 sum once, with one rounding, before the bias. So a product here has
// fewer roundings than one with decoded weights, code x fl(scale / G), of which each weight has two
// (formats/nvfp4.h), and differs from it in the last bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/nvfp4.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

struct Nvfp4GranuleLayout {
  using Pairs = E2m1Pairs;
  using Stored = std::uint8_t;
  static constexpr int scale_group = nvfp4_block;
  static constexpr std::uint8_t nan_stored = 0x90;

  // A stored scale is E4M3's magnitude with five bits of exponent instead of four, in which its subnormals
  // are normal: 2^(stored / 8 - 9) x (1 + stored % 8 / 8). Shifted to a bfloat16's mantissa and exponent and
  // moved by a constant it is scale x 2^119; with placed pairs, 2^-126 of their values, products are 2^-7 of
  // theirs. The exponent after 448's is that of infinity.
  NIBBLE_HOST_DEVICE static constexpr std::uint32_t multiplier(std::uint8_t stored) {
    return std::uint32_t{stored} * 0x00100010u + 0x76807680u;
  }

  struct SumFactor {
    const PairFactors* tensor_scales;  // [experts]
    NIBBLE_HOST_DEVICE constexpr PairFactors of(int expert) const {
      return {128.0f * tensor_scales[expert].even, 128.0f * tensor_scales[expert].odd};
    }
  };

  // What a stored scale lacks, the codes have: a negative scale turns their signs, one of zero leaves nothing
  // but signs, and NaN is infinity times zero.
  struct ScalePacking {
    NIBBLE_HOST_DEVICE static constexpr std::uint8_t stored(std::uint8_t scale) {
      const unsigned magnitude = scale & 0x7fu;
      if (magnitude == 0x7f) return nan_stored;
      if (magnitude >= 8) return static_cast<std::uint8_t>(magnitude + 16);
      if (magnitude >= 4) return static_cast<std::uint8_t>(16 + (magnitude - 4) * 2);
      if (magnitude >= 2) return static_cast<std::uint8_t>(8 + (magnitude - 2) * 4);
      return 0;
    }
    NIBBLE_HOST_DEVICE static constexpr CodeChange change(std::uint8_t scale) {
      const unsigned magnitude = scale & 0x7fu;
      return {.keep = static_cast<std::uint8_t>(magnitude == 0x7f ? 0
                                                : magnitude == 0  ? 0x88
                                                                  : 0xff),
              .flip = static_cast<std::uint8_t>(scale < 0x80 ? 0 : 0x88)};
    }
  };
};
using Nvfp4GranuleShape = GranuleShapeOf<Nvfp4GranuleLayout>;

// Matrices of one shape in this layout, an expert after the other, on the device or on the host.
struct Nvfp4Granules {
  using Layout = Nvfp4GranuleLayout;
  const std::uint8_t* data = nullptr;  // [experts, shape.bytes()]
  int experts = 0;
  Nvfp4GranuleShape shape;
  // [experts]: what a value is multiplied by, below 2^120; of gates and up projections, or twice the same.
  // 1 / weight_global_scale of compressed-tensors, weight_scale_2 of ModelOpt.
  const PairFactors* tensor_scales = nullptr;

  Layout::SumFactor factor() const { return {tensor_scales}; }
};

// Packs one matrix on the host: the oracle of the device's repacking. out: [shape.bytes()].
void pack_nvfp4_granules(const std::uint8_t* codes,   // [rows, cols / 2]
                         const std::uint8_t* scales,  // E4M3 [rows, cols / 16]
                         const Nvfp4GranuleShape& shape, std::span<std::uint8_t> out);

// code x block scale of (row, col), as the kernels read it.
float granule_value(const Nvfp4Granules& matrices, int expert, int row, int col);

}  // namespace nibble
