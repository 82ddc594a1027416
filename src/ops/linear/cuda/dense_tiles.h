// The layouts of bfloat16 matrices for wgmma, one for few tokens and for many, and of the activations they
// are multiplied by. Weights are the M operand, tokens are N.
//
//   weights      tiles of 64 rows over the whole of K, one after the other; a tile is one k16 step after the
//                other, a step 8 groups of 8 operand rows x 2 halves of 8 k x (8 rows x 16 bytes). Any run of
//                k16 steps of a tile is one contiguous copy.
//   activations  groups of 8 tokens over the whole of K, one after the other; a group is one k16 step after
//                the other, a step 2 halves of 8 k x (8 tokens x 16 bytes).
//
// Both are the core matrices that wgmma reads from shared memory without swizzle. Operand row 16w + g of a
// tile holds its row 8w + g, operand row 16w + g + 8 its row 8w + g + 32: rows i and i + 32 of a tile meet in
// one thread, which for a head of 64 dimensions are the two that a rotary embedding turns together. Rows are
// padded to 64 with zeros, K to 64 with zeros in the weights; what activations hold there must be finite.
// Tokens past the last one may hold anything: columns do not mix.
//
// Order of additions of every product on this layout, an op's contract: K is cut into 8 chunks of whole k64
// blocks, their borders a function of K alone (chunk_begin). Within a chunk the tensor core's chain over its
// k16 steps from zero; the chunks' sums are added in order of the index, then the bias. Nothing else enters.
#pragma once

#include <cstddef>
#include <span>

#include "formats/bf16.h"
#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int dense_tile_rows = 64;
inline constexpr int dense_k = 64;  // of K, in a block
inline constexpr int dense_k_chunks = 8;
inline constexpr int dense_step_bytes = dense_tile_rows * 16 * 2;  // of a tile, for a k16 step
inline constexpr int dense_block_bytes = 4 * dense_step_bytes;     // of a tile, for a k64 block
inline constexpr int token_group = 8;
inline constexpr int token_step_bytes = token_group * 16 * 2;  // of a group, for a k16 step
inline constexpr int token_block_bytes = 4 * token_step_bytes;

// Where things lie in a weight matrix [rows, cols].
struct DenseShape {
  int rows = 0;
  int cols = 0;

  NIBBLE_HOST_DEVICE constexpr int tiles() const { return (rows + dense_tile_rows - 1) / dense_tile_rows; }
  NIBBLE_HOST_DEVICE constexpr int blocks() const { return (cols + dense_k - 1) / dense_k; }
  NIBBLE_HOST_DEVICE constexpr int padded_cols() const { return blocks() * dense_k; }
  NIBBLE_HOST_DEVICE constexpr int chunk_begin(int chunk) const {  // its first k64 block
    return chunk * blocks() / dense_k_chunks;
  }
  NIBBLE_HOST_DEVICE constexpr std::size_t tile_bytes() const {
    return static_cast<std::size_t>(blocks()) * dense_block_bytes;
  }
  NIBBLE_HOST_DEVICE constexpr std::size_t bytes() const {
    return static_cast<std::size_t>(tiles()) * tile_bytes();
  }
  // Of the activations of `tokens` tokens.
  NIBBLE_HOST_DEVICE constexpr std::size_t token_bytes(int tokens) const {
    return static_cast<std::size_t>((tokens + token_group - 1) / token_group) *
           static_cast<std::size_t>(blocks()) * token_block_bytes;
  }
};

// Byte offset of element (row, col) of the weights.
NIBBLE_HOST_DEVICE constexpr std::size_t dense_offset(const DenseShape& shape, int row, int col) {
  const int in_tile = row % dense_tile_rows, group = in_tile % 32 / 8 * 2 + in_tile / 32;
  return static_cast<std::size_t>(row / dense_tile_rows) * shape.tile_bytes() +
         static_cast<std::size_t>(col / 16 * dense_step_bytes + group * 256 + col % 16 / 8 * 128 +
                                  in_tile % 8 * 16 + col % 8 * 2);
}

// Byte offset of element (token, col) of activations whose K has `blocks` k64 blocks.
NIBBLE_HOST_DEVICE constexpr std::size_t token_offset(int blocks, int token, int col) {
  return static_cast<std::size_t>(token / token_group) * static_cast<std::size_t>(blocks) *
             token_block_bytes +
         static_cast<std::size_t>(col / 16 * token_step_bytes + col % 16 / 8 * 128 +
                                  token % token_group * 16 + col % 8 * 2);
}

struct DenseTileLayout {};

// A matrix in this layout, on the device.
struct DenseTiles {
  using Layout = DenseTileLayout;
  const std::uint8_t* data = nullptr;  // [shape.bytes()]
  DenseShape shape;
};

// Activations in this layout, on the device: [shape.token_bytes(tokens)] of a matrix with such columns.
struct TokenTiles {
  using Layout = DenseTileLayout;
  const std::uint8_t* data = nullptr;
  int tokens = 0;
};

}  // namespace nibble
