// The tokens of a launch for many tokens, expert by expert in tiles, with their activations as wgmma reads
// them.
//
// A tile is some tokens of one expert, its `width` one of the few that the launch's kernel has code for. An
// expert's tiles lie one after the other, first the wider ones, full but for the last. A tile's activations
// are a matrix [k64 blocks, 4 steps of 16, width / 8, 2 halves, 8 tokens, 16 bytes], so that any run of k64
// blocks is one bulk copy, and each step of it an operand without swizzle.
//
// Which tiles there are every block works out for itself, in shared memory: from the experts' numbers of
// tokens alone, so all agree. Which of an expert's tokens a tile has only matters to those who gather it.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_taken.h"
#include "ops/moe/cuda/sorted_slots.h"

namespace nibble {

// The widths of a launch's tiles, ascending multiples of 8.
struct MoeManyWidths {
  int count = 0;
  int width[5] = {};

  __host__ __device__ constexpr int largest() const { return width[count - 1]; }
  // Whether moe_many_tiles and moe_many_rows have room for what a cut takes.
  __host__ __device__ constexpr bool fit() const {
    for (int i = 0; i < count; ++i) {
      if (width[i] - (i == 0 ? 0 : width[i - 1]) > moe_many_most_empty + 1) return false;
    }
    return largest() >= moe_many_least_tile;
  }
  // The least that has room for so many.
  __host__ __device__ constexpr int holding(int tokens) const {
    int i = 0;
    while (width[i] < tokens) ++i;
    return width[i];
  }
};

// Of the three kernels, which the mean number of an expert's tokens chooses: the others from so many on.
inline constexpr MoeManyWidths moe_many_widths_of_few{5, {8, 16, 24, 32, 40}};
inline constexpr MoeManyWidths moe_many_widths_of_some{3, {48, 64, 80}};
inline constexpr MoeManyWidths moe_many_widths_of_many{4, {112, 128, 144, 160}};
inline constexpr int moe_many_least_of_some = 36, moe_many_least_of_many = 76;

// How an expert's tokens are cut into tiles: as few as will do, of equal numbers of tokens rather than a
// small rest, and so of two neighbouring widths at most but for the last, which is as narrow as its tokens
// allow.
struct MoeManyCut {
  std::int32_t tiles = 0, wide = 0;      // all of them; those of `width`, the first
  std::int32_t width = 0, narrower = 0;  // of the others

  constexpr MoeManyCut() = default;
  __host__ __device__ constexpr MoeManyCut(const MoeManyWidths& widths, int tokens) {
    if (tokens == 0) return;
    tiles = (tokens + widths.largest() - 1) / widths.largest();
    int i = 0;
    while (widths.width[i] * tiles < tokens) ++i;
    width = narrower = widths.width[i];
    wide = tiles;
    if (i == 0) return;
    narrower = widths.width[i - 1];
    wide = (tokens - tiles * narrower + width - narrower - 1) / (width - narrower);
  }
  // Places of the tiles before tile `index`.
  __host__ __device__ constexpr int places_before(int index) const {
    return index < wide ? index * width : wide * width + (index - wide) * narrower;
  }
  __host__ __device__ constexpr int width_of(int index) const { return index < wide ? width : narrower; }
};

inline constexpr int moe_many_widest_tile = moe_many_widths_of_many.largest();

// The tokens of a launch.
struct MoeManyTokens {
  const Bf16* x;                   // [tokens, x_stride]
  const std::int32_t* expert_ids;  // [slots], -1: none
  int x_stride, top_k, slots;
  MoeTaken taken;
  SortedSlots sorted;  // or nothing: whoever gathers a tile looks for its slots
};

// An expert among the tiles.
struct alignas(16) MoeManyExpert {
  std::int32_t tokens;
  std::int32_t tiles;  // with those of all experts before it
  std::int32_t row;    // its first place among all tiles' places
  std::uint16_t wide;  // of its cut
  std::uint8_t width, narrower;
};

struct MoeManyTile {
  int expert, width;
  int row;            // its first place among all tiles' places
  int first, tokens;  // which of its expert's
  bool is_all;        // they are all of them
};

// Where the tiles lie: in MoeCudaWorkspace::many, and their counters in ::many_counters.
struct MoeManyPlaces {
  std::int32_t* slots;       // [moe_many_rows]: of each place in a tile, -1: nobody's
  std::uint8_t* x;           // the tiles of gate_up's inputs; a tile's begin at row x padded hidden x 2 bytes
  std::uint8_t* h;           // of down's
  std::uint32_t* next_item;  // of the work that blocks take
  std::uint32_t* x_ready;    // [moe_many_tiles]: of a tile's x, items done
  std::uint32_t* h_ready;    // [moe_many_tiles]: of its h; then who has read it
  std::uint32_t* stuck;      // MoeCudaWorkspace's
};

inline constexpr int moe_row_bytes = granule_k * 2;  // of a token in a k64 block

// Where element `element` (0..63) of a k64 block lies for a token of a tile `width` wide: K ordered as the
// granules order it.
__host__ __device__ constexpr int moe_tile_offset(int width, int token, int element) {
  const int t = element / 16, step = element % 16 / 4, half = element % 4 / 2, value = element % 2;
  return step * width * 32 + token / 8 * 256 + half * 128 + token % 8 * 16 + t * 4 + value * 2;
}

}  // namespace nibble
