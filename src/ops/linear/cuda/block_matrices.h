// The layout of matrices that are multiplied by blocks of 128 columns, each block with a scale of its own:
// FP8 (E4M3) in tiles of 128 x 128 or with a scale a row, bfloat16, whose scales are one, and NVFP4, of which
// a matrix has one above those of its sixteens.
//
//   granule   16 consecutive rows over the whole of K; granules follow one another, experts too
//   k64 block pieces of 32 lanes x 16 bytes, those of the even rows before those of the odd ones. FP8 has two
//             pieces for both rows. The first has steps 0 and 1, the second steps 2 and 3. A step is a word
//             of the even row, then one of the odd row
//   factors   a pair for a granule and 128 columns: of the even rows and of the odd ones; 1 where rows have
//   scales
//
// Rows and K lie as in ops/moe/cuda/granules.h: operand row g of the upper half (0..7) holds row 2g of the
// granule, and operand row g + 8 row 2g + 1. So a gate and its up projection meet in one lane. K is padded to
// 64 with zeros; what the activations hold there must be finite.
//
// Which of a k64 block's columns lane t of each row's four holds is one of two orders (ColumnOrder).
// Quarters, of experts and of NVFP4: elements 16t .. 16t + 15, of which step s takes the four that begin at
// 4s. So a lane reads its activations from plain rows in two pieces of 16 bytes. Steps, of dense FP8: of
// step s, which has elements 16s .. 16s + 15, those at 2t, 2t + 1, 2t + 8 and 2t + 9. So token tiles
// (dense_tiles.h) are what wgmma reads.
//
// FP8 tensor cores take pieces of FP8 as they are. For bfloat16 products six instructions make two pairs of a
// word (place_e4m3).
//
// Order of additions of every product on this layout, an op's contract, that of ops/linear/weight_matrix.h
// with the tensor core's sums of blocks:
//
//   total = fma(s_1, T_1, fma(s_0, T_0, 0)) ...   over blocks of 128 columns, the last one maybe shorter
//
// T_b is the tensor core's chain over the block's k16 steps from zero, s_b the factor of the row and the
// block, 1 where codes have no scales. Codes are decoded to bfloat16 exactly, and each fma is rounded once to
// float32. Where rows have scales, that of the row multiplies the total, in one rounding. Nothing else enters
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int block_granule_rows = 16;
inline constexpr int block_k = 64;               // of K, in a block of the layout
inline constexpr int block_scale_columns = 128;  // that share a factor
inline constexpr int block_piece_bytes = 512;    // 32 lanes x 16

// Kinds of codes, each a type: the bytes of one, if it has whole ones, and of a granule's k64 block.
struct Bf16Codes {
  static constexpr int bytes = 2, block_bytes = 4 * block_piece_bytes;
  static constexpr bool scaled = false;
};
struct E4m3Codes {
  static constexpr int bytes = 1, block_bytes = 2 * block_piece_bytes;
  static constexpr bool scaled = true;
};
// A granule is that of ops/moe/cuda/nvfp4_granules.h, whose products are 2^-7 of the weights'; factors make
// up for that.
struct Nvfp4Codes {
  static constexpr int block_bytes = block_piece_bytes + 64;
  static constexpr bool scaled = true;
};

enum class ColumnOrder { quarters, steps };

struct alignas(8) BlockFactors {
  float even, odd;
};

// Four codes of E4M3, the first in the low byte, as they lie in a word: the second and the third exchanged,
// so that a pair of bfloat16 comes from the low bytes of its halves and one from the high bytes.
NIBBLE_HOST_DEVICE constexpr std::uint32_t paired_e4m3(std::uint32_t codes) {
  return (codes & 0xff0000ffu) | (codes >> 8 & 0xff00u) | (codes & 0xff00u) << 8;
}

template <class Codes>
struct BlockShape {
  int rows = 0;  // a multiple of 16
  int cols = 0;  // a multiple of 16

  NIBBLE_HOST_DEVICE constexpr int granules() const { return rows / block_granule_rows; }
  NIBBLE_HOST_DEVICE constexpr int blocks() const { return (cols + block_k - 1) / block_k; }
  NIBBLE_HOST_DEVICE constexpr int padded_cols() const { return blocks() * block_k; }
  NIBBLE_HOST_DEVICE constexpr int scale_blocks() const {
    return (cols + block_scale_columns - 1) / block_scale_columns;
  }
  static constexpr int pieces = Codes::block_bytes / block_piece_bytes;  // of a k64 block
  NIBBLE_HOST_DEVICE constexpr std::size_t granule_bytes() const {
    return static_cast<std::size_t>(blocks()) * Codes::block_bytes;
  }
  NIBBLE_HOST_DEVICE constexpr std::size_t bytes() const {
    return static_cast<std::size_t>(granules()) * granule_bytes();
  }
  // Of one matrix; none where codes have no scales.
  NIBBLE_HOST_DEVICE constexpr std::size_t factors() const {
    return Codes::scaled ? static_cast<std::size_t>(granules()) * static_cast<std::size_t>(scale_blocks())
                         : 0;
  }
  constexpr bool legal() const {
    return rows > 0 && cols > 0 && rows % block_granule_rows == 0 && cols % 16 == 0;
  }
};

// Matrices of one shape in this layout, an expert after the other, on the device.
template <class Codes>
struct BlockMatrices {
  using Layout = Codes;
  const std::uint8_t* data = nullptr;  // [experts, shape.bytes()]
  const BlockFactors* factors =
      nullptr;  // [experts, granules, scale_blocks]; null where codes have no scales
  int experts = 1;
  BlockShape<Codes> shape;
  const float* row_scales = nullptr;  // of FP8: [experts, shape.rows]; null where rows have none
};

}  // namespace nibble
