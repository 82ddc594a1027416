// What the kernels of products with matrices in blocks (block_matrices.h) share: where activations lie, which
// rows of them go together, and a lane's weights as operands of the tensor core.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "formats/bf16.h"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/linear/cuda/row_group.h"
#include "ops/moe/cuda/nvfp4_granules.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble::block_products {

// Where rows of activations lie, in bytes: plain rows or token tiles, a k64 block of a row in eight pieces.
struct Inputs {
  const std::uint8_t* data;
  std::size_t eight;  // from eight rows to the next eight
  int row;            // from a row to the next of its eight
  int block;          // from a k64 block to the next
  int piece;          // from a piece to the next

  __device__ __forceinline__ const std::uint8_t* row_at(int of_row) const {
    return data + of_row / 8 * eight + of_row % 8 * row;
  }
};
inline Inputs plain_rows(const Bf16* x, int stride) {
  return {.data = reinterpret_cast<const std::uint8_t*>(x),
          .eight = static_cast<std::size_t>(stride) * 16,
          .row = stride * 2,
          .block = block_k * 2,
          .piece = 16};
}
inline Inputs token_tiles(const TokenTiles& x, int blocks) {
  return {.data = x.data,
          .eight = static_cast<std::size_t>(blocks) * token_block_bytes,
          .row = 16,
          .block = token_block_bytes,
          .piece = token_step_bytes / 2};
}

// All groups of a launch. Without a list they are consecutive rows of one matrix.
struct RowGroups {
  const RowGroup* listed = nullptr;     // [of *count]
  const std::int32_t* count = nullptr;  // that are listed
  const std::int32_t* rows = nullptr;   // of all groups, one after the other
  int all = 0;                          // rows, without a list

  // most: rows of a group.
  __device__ __forceinline__ int groups(int most) const {
    return listed != nullptr ? *count : (all + most - 1) / most;
  }
  __device__ __forceinline__ RowGroup at(int index, int most) const {
    if (listed != nullptr) return listed[index];
    return {0, index * most, min(most, all - index * most), 0};
  }
  __device__ __forceinline__ int row_of(const RowGroup& group, int index) const {
    return listed != nullptr ? rows[group.first + index] : group.first + index;
  }
};

// A lane's share of a k64 block, and its four steps' operands.
template <class Codes>
struct Share {
  uint4 piece[BlockShape<Codes>::pieces];

  __device__ __forceinline__ void load(const std::uint8_t* block, int lane) {
#pragma unroll
    for (int i = 0; i < BlockShape<Codes>::pieces; ++i)
      piece[i] = *reinterpret_cast<const uint4*>(block + i * block_piece_bytes + lane * 16);
  }
};
template <>
struct Share<Nvfp4Codes> {
  uint4 codes;
  std::uint16_t scales;  // of the even row and of the odd one

  __device__ __forceinline__ void load(const std::uint8_t* block, int lane) {
    static_assert(Nvfp4Codes::block_bytes == granule_block_bytes<Nvfp4GranuleLayout>);
    codes = *reinterpret_cast<const uint4*>(block + lane * 16);
    scales = *reinterpret_cast<const std::uint16_t*>(block + granule_code_bytes +
                                                     granule_lane_scales<Nvfp4GranuleLayout>(lane));
  }
};
__device__ __forceinline__ std::uint32_t word_of(const uint4& words, int index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// The operands of steps 2 * half and 2 * half + 1.
__device__ __forceinline__ void operands_of(const Share<Bf16Codes>& share, int half,
                                            std::uint32_t (&a)[2][4]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[step][i] = word_of(share.piece[i % 2 * 2 + half], step * 2 + i / 2);
  }
}
// Both pairs of a word (paired_e4m3) as bfloat16, 2^-120 of their values, which placed_e4m3_factor corrects
// exactly. A code that is no number would be 480: its factors are none.
struct PlacedE4m3 {
  std::uint32_t first, second;
};
inline constexpr std::uint32_t placed_e4m3_factor = 0x7b807b80u;  // 2^120, twice
__device__ __forceinline__ PlacedE4m3 place_e4m3(std::uint32_t word) {
  return {ptx::sign_extended_low_bytes(word) << 4 & 0x87f087f0u,
          (word & 0x80008000u) | (word >> 4 & 0x07f007f0u)};
}
__device__ __forceinline__ void operands_of(const Share<E4m3Codes>& share, int half,
                                            std::uint32_t (&a)[2][4]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const PlacedE4m3 placed = place_e4m3(word_of(share.piece[half], 2 * step + i));
      a[step][i] = ptx::multiply_bf16x2(placed.first, placed_e4m3_factor);
      a[step][i + 2] = ptx::multiply_bf16x2(placed.second, placed_e4m3_factor);
    }
  }
}
__device__ __forceinline__ void operands_of(const Share<Nvfp4Codes>& share, int half,
                                            std::uint32_t (&a)[2][4]) {
  const std::uint32_t first = half == 0 ? share.codes.x : share.codes.z,
                      second = half == 0 ? share.codes.y : share.codes.w;
  const PlacedPairs pairs = place_pairs(first, second, ptx::choose_bits(first, second, granule_merge_mask));
  const std::uint32_t even = Nvfp4GranuleLayout::multiplier(static_cast<std::uint8_t>(share.scales)),
                      odd = Nvfp4GranuleLayout::multiplier(static_cast<std::uint8_t>(share.scales >> 8));
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = ptx::multiply_bf16x2(pairs.pair[i], i % 2 == 0 ? even : odd);
}

// A row's 16 elements of lane t in a k64 block, two words a step.
struct LaneInputs {
  uint4 low, high;

  // From the row's pieces, where the weights lie in quarters or in steps.
  template <ColumnOrder order>
  __device__ __forceinline__ void load(const std::uint8_t* row, int piece, int t) {
    if constexpr (order == ColumnOrder::quarters) {
      low = *reinterpret_cast<const uint4*>(row + 2 * t * piece);
      high = *reinterpret_cast<const uint4*>(row + 2 * t * piece + piece);
    } else {
      const auto word = [&](int of) {
        return *reinterpret_cast<const std::uint32_t*>(row + of * piece + t * 4);
      };
      low = make_uint4(word(0), word(1), word(2), word(3));
      high = make_uint4(word(4), word(5), word(6), word(7));
    }
  }
};

// sums += the products of a k64 block with each of `eights` times eight rows.
template <class Codes, int eights>
__device__ __forceinline__ void multiply_block(float (&sums)[eights][4], const Share<Codes>& share,
                                               const LaneInputs (&x)[eights]) {
  std::uint32_t a[2][2][4];
  operands_of(share, 0, a[0]);
  operands_of(share, 1, a[1]);
#pragma unroll
  for (int j = 0; j < eights; ++j) {
    const std::uint32_t b[8] = {x[j].low.x,  x[j].low.y,  x[j].low.z,  x[j].low.w,
                                x[j].high.x, x[j].high.y, x[j].high.z, x[j].high.w};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t(&of)[4] = a[step / 2][step % 2];
      ptx::mma_m16n8k16_bf16(sums[j], of[0], of[1], of[2], of[3], b[2 * step], b[2 * step + 1]);
    }
  }
}

// What a finished total is multiplied by: the scales of a lane's two rows of weights. Ones where rows have
// none.
struct RowScales {
  float even = 1, odd = 1;

  __device__ __forceinline__ float even_product(float total) const { return __fmul_rn(total, even); }
  __device__ __forceinline__ float odd_product(float total) const { return __fmul_rn(total, odd); }
};
struct NoRowScales {
  __device__ __forceinline__ static float even_product(float total) { return total; }
  __device__ __forceinline__ static float odd_product(float total) { return total; }
};
template <class Codes>
__device__ __forceinline__ RowScales row_scales_of(const BlockMatrices<Codes>& weights, int expert,
                                                   int even_row) {
  if constexpr (!std::is_same_v<Codes, E4m3Codes>) return {};
  if (weights.row_scales == nullptr || even_row >= weights.shape.rows) return {};
  const float2 scales = *reinterpret_cast<const float2*>(
      weights.row_scales + static_cast<std::size_t>(expert) * weights.shape.rows + even_row);
  return {scales.x, scales.y};
}

// A block of 128 columns added to the total, in one rounding.
template <class Codes>
__device__ __forceinline__ float add_block(float total, float sum, float factor) {
  return Codes::scaled ? fmaf(factor, sum, total) : __fadd_rn(total, sum);
}

}  // namespace nibble::block_products
