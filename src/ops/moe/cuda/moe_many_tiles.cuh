// The tokens of a launch for many tokens, expert by expert in tiles, with their activations as wgmma reads
// them.
//
// A tile is some tokens of one expert, its `width` one of the few that the launch's kernel has code for. An
// expert's tiles lie one after the other, full but for the last. A tile's activations are a matrix
// [k64 blocks, 4 steps of 16, width / 8, 2 halves, 8 tokens, 16 bytes], so that any run of k64 blocks is one
// bulk copy, and each step of it an operand without swizzle.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {

// The widths of a launch's tiles, ascending multiples of 8.
struct MoeManyWidths {
  int count = 0;
  int width[5] = {};

  __host__ __device__ constexpr int largest() const { return width[count - 1]; }
  // Whether the tables and the tiles have room for what next() gives.
  __host__ __device__ constexpr bool fit() const {
    for (int i = 0; i < count; ++i) {
      if (width[i] - (i == 0 ? 0 : width[i - 1]) > moe_many_most_empty + 1) return false;
    }
    return largest() >= moe_many_least_tile;
  }
  // The next tile for what is left of an expert: of as few tiles as will do, equal ones rather than a small
  // rest.
  __host__ __device__ constexpr int next(int left) const {
    const int tiles = (left + largest() - 1) / largest(), each = (left + tiles - 1) / tiles;
    int i = 0;
    while (width[i] < each) ++i;
    return width[i];
  }
};

struct MoeManyTile {
  std::int32_t expert, width;
  std::int32_t row;  // its first token's among all tiles' tokens
  std::int32_t unused;
};

// The tables and the tiles of both products, in MoeCudaWorkspace::many.
struct MoeManyPlaces {
  MoeManyTile* tiles;   // [moe_many_tiles]
  std::int32_t* slots;  // [moe_many_rows], -1 where a tile is padded
  std::int32_t* tile_count;
  std::int32_t* next_item;  // of the work that blocks take, from 0
  std::uint32_t* h_ready;   // [moe_many_tiles] items of gate_up whose h is stored
  std::uint8_t* x;          // the tiles of gate_up's inputs; a tile's begin at row x padded hidden x 2 bytes
  std::uint8_t* h;          // of down's
};

inline constexpr int moe_row_bytes = granule_k * 2;  // of a token in a k64 block

// Where element `element` (0..63) of a k64 block lies for a token of a tile `width` wide: K ordered as the
// granules order it.
__host__ __device__ constexpr int moe_tile_offset(int width, int token, int element) {
  const int t = element / 16, step = element % 16 / 4, half = element % 4 / 2, value = element % 2;
  return step * width * 32 + token / 8 * 256 + half * 128 + token % 8 * 16 + t * 4 + value * 2;
}

// Queues what fills the tables and the tiles of x.
MoeManyPlaces launch_moe_many_tiles(const MoeCudaArgs& args, int experts, int hidden_blocks,
                                    const MoeManyWidths& widths, cudaStream_t stream);

}  // namespace nibble
