// The kernel of products with matrices in blocks (block_matrices.h): rows of activations in groups of one
// expert each, 16 rows of weights a warp.
//
// One kernel in two cuts with the same bits. For few rows four warps share a granule and take its blocks of
// 128 columns in turns; what each found is added in the blocks' order. For many rows a warp has all of its
// granule for 64 rows of activations, so that weights are read once for them. Bytes: weights once for every
// group; activations once for every granule or four, mostly from caches.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/moe/cuda/nvfp4_granules.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble::block_products {

// Where rows of activations lie, in bytes: plain rows or token tiles.
struct Inputs {
  const std::uint8_t* data;
  std::size_t eight;  // from eight rows to the next eight
  int row;            // from a row to the next of its eight
  int block;          // from a k64 block to the next
  int quarter, half;  // from a lane's 16 elements to the next lane's, and between the halves of them

  __device__ __forceinline__ const std::uint8_t* lane_at(int of_row, int t) const {
    return data + of_row / 8 * eight + of_row % 8 * row + t * quarter;
  }
};
inline Inputs plain_rows(const Bf16* x, int stride) {
  return {.data = reinterpret_cast<const std::uint8_t*>(x),
          .eight = static_cast<std::size_t>(stride) * 16,
          .row = stride * 2,
          .block = block_k * 2,
          .quarter = 32,
          .half = 16};
}
inline Inputs token_tiles(const TokenTiles& x, int blocks) {
  return {.data = x.data,
          .eight = static_cast<std::size_t>(blocks) * token_block_bytes,
          .row = 16,
          .block = token_block_bytes,
          .quarter = token_step_bytes,
          .half = token_step_bytes / 2};
}

// Rows of outputs that one expert's matrix gives.
struct alignas(16) RowGroup {
  std::int32_t expert, first, count, unused;
};
// All groups of a launch, of up to the cut's rows each. Without a list they are consecutive rows of one
// matrix.
struct RowGroups {
  const RowGroup* listed = nullptr;     // [of *count]
  const std::int32_t* count = nullptr;  // that are listed
  const std::int32_t* rows = nullptr;   // of all groups, one after the other
  int all = 0;                          // rows, without a list

  __device__ __forceinline__ RowGroup at(int index, int most) const {
    if (listed != nullptr) return index < *count ? listed[index] : RowGroup{};
    return {0, index * most, min(most, all - index * most), 0};
  }
  __device__ __forceinline__ int row_of(const RowGroup& group, int index) const {
    return listed != nullptr ? rows[group.first + index] : group.first + index;
  }
};

template <class Codes>
struct Params {
  BlockMatrices<Codes> weights;
  Inputs x;
  RowGroups groups;
  int choices = 1;  // consecutive rows of outputs that share one of inputs
};

// How a block of threads is cut: warps along K that share a granule, warps with granules of their own, and
// rows of activations in eights.
struct FewRows {
  static constexpr int k_warps = 4, row_warps = 1, eights = 1;
};
struct ManyRows {
  static constexpr int k_warps = 1, row_warps = 4, eights = 8;
};
template <class Cut>
inline constexpr int rows_of = 8 * Cut::eights;
template <class Cut>
inline constexpr int threads_of = 32 * Cut::k_warps* Cut::row_warps;

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
__device__ __forceinline__ void operands_of(const Share<Bf16Codes>& share, int step, std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = word_of(share.piece[i % 2 * 2 + step / 2], step % 2 * 2 + i / 2);
}
__device__ __forceinline__ void operands_of(const Share<E4m3Codes>& share, int step, std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t four = word_of(share.piece[i % 2], step);
    a[i] = ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(i < 2 ? four : four >> 16));
  }
}

__device__ __forceinline__ void operands_of(const Share<Nvfp4Codes>& share, int step, std::uint32_t (&a)[4]) {
  const PlacedPairs pairs =
      step < 2 ? place_pairs(share.codes.x, share.codes.y) : place_pairs(share.codes.z, share.codes.w);
  const std::uint32_t even = Nvfp4GranuleLayout::multiplier(static_cast<std::uint8_t>(share.scales)),
                      odd = Nvfp4GranuleLayout::multiplier(static_cast<std::uint8_t>(share.scales >> 8));
#pragma unroll
  for (int i = 0; i < 4; ++i)
    a[i] = ptx::multiply_bf16x2(pairs.pair[step % 2 * 4 + i], i % 2 == 0 ? even : odd);
}

// The sums of a k64 block, added to the block's of 128.
template <class Codes, int eights>
__device__ __forceinline__ void add_block(float (&sums)[eights][4], const Share<Codes>& share,
                                          const std::uint8_t* const (&x)[eights], std::size_t x_offset,
                                          int half, int count) {
  std::uint32_t a[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) operands_of(share, step, a[step]);
#pragma unroll
  for (int j = 0; j < eights; ++j) {
    if (8 * j >= count) break;
    const uint4 low = *reinterpret_cast<const uint4*>(x[j] + x_offset),
                high = *reinterpret_cast<const uint4*>(x[j] + x_offset + half);
    ptx::mma_m16n8k16_bf16(sums[j], a[0][0], a[0][1], a[0][2], a[0][3], low.x, low.y);
    ptx::mma_m16n8k16_bf16(sums[j], a[1][0], a[1][1], a[1][2], a[1][3], low.z, low.w);
    ptx::mma_m16n8k16_bf16(sums[j], a[2][0], a[2][1], a[2][2], a[2][3], high.x, high.y);
    ptx::mma_m16n8k16_bf16(sums[j], a[3][0], a[3][1], a[3][2], a[3][3], high.z, high.w);
  }
}

// What warps that share a granule found in their blocks of 128, a place a sum; twice, so that one barrier a
// turn will do.
template <class Cut>
struct TurnRoom {
  static constexpr int sums = Cut::k_warps == 1 ? 1 : 32 * 4 * Cut::eights;
  float found[2][Cut::k_warps][sums];
  float totals[sums];
};

// store(row, weight row, even, odd): the totals of two neighbouring rows of weights for a row of outputs.
template <class Codes, class Cut, class Store>
__global__ void __launch_bounds__(threads_of<Cut>)
    multiply_blocks(const __grid_constant__ Params<Codes> params, const __grid_constant__ Store store) {
  constexpr int eights = Cut::eights, k_warps = Cut::k_warps;
  static_assert(k_warps == 1 || (Cut::row_warps == 1 && eights == 1 && k_warps == 4));
  const BlockShape<Codes> shape = params.weights.shape;
  const int warp = ptx::warp_of_block(), thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int g = lane / 4, t = lane % 4, k_warp = warp % k_warps;
  const int granule = static_cast<int>(blockIdx.x) * Cut::row_warps + warp / k_warps;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const RowGroup group = params.groups.at(static_cast<int>(blockIdx.y), rows_of<Cut>);
  if (group.count <= 0 || granule >= shape.granules()) return;
  const std::uint8_t* x[eights];
#pragma unroll
  for (int j = 0; j < eights; ++j) {  // past the last row the last: columns do not mix
    const int row = params.groups.row_of(group, min(8 * j + g, group.count - 1));
    x[j] = params.x.lane_at(row / params.choices, t);
  }
  const std::size_t of_all = static_cast<std::size_t>(group.expert) * shape.granules() + granule;
  const std::uint8_t* const codes = params.weights.data + of_all * shape.granule_bytes();
  const int blocks = shape.blocks(), scale_blocks = shape.scale_blocks();
  Share<Codes> next[2];
  const auto load = [&](int block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * block + i < blocks)
        next[i].load(codes + static_cast<std::size_t>(2 * block + i) * Codes::block_bytes, lane);
    }
  };
  if (k_warp < scale_blocks) load(k_warp);
  [[maybe_unused]] float totals[eights][4] = {};
  [[maybe_unused]] float turns_total = 0;
  int turn = 0;
  [[maybe_unused]] __shared__ TurnRoom<Cut> room;
  for (int first = 0; first < scale_blocks; first += k_warps, turn ^= 1) {
    const int block = first + k_warp;
    float sums[eights][4] = {};
    if (block < scale_blocks) {
      const Share<Codes> share[2] = {next[0], next[1]};
      if (block + k_warps < scale_blocks) load(block + k_warps);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (2 * block + i < blocks) {
          add_block<Codes, eights>(sums, share[i], x,
                                   static_cast<std::size_t>(2 * block + i) * params.x.block, params.x.half,
                                   group.count);
        }
      }
      if constexpr (Codes::scaled) {
        const BlockFactors factor = params.weights.factors[of_all * scale_blocks + block];
#pragma unroll
        for (int j = 0; j < eights; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[j][i] = __fmul_rn(sums[j][i], i < 2 ? factor.even : factor.odd);
        }
      }
    }
    if constexpr (k_warps == 1) {
#pragma unroll
      for (int j = 0; j < eights; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) totals[j][i] = __fadd_rn(totals[j][i], sums[j][i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) room.found[turn][k_warp][i * 32 + lane] = sums[0][i];
      __syncthreads();  // the turn's sums are there, and those of the turn before last have been read
#pragma unroll
      for (int w = 0; w < k_warps; ++w) {
        if (first + w < scale_blocks) turns_total = __fadd_rn(turns_total, room.found[turn][w][thread]);
      }
    }
  }
  const int weight_row = granule * block_granule_rows;
  if constexpr (k_warps == 1) {
#pragma unroll
    for (int j = 0; j < eights; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int index = 8 * j + 2 * t + i;
        if (index < group.count)
          store(params.groups.row_of(group, index), weight_row + 2 * g, totals[j][i], totals[j][2 + i]);
      }
    }
  } else {
    room.totals[thread] = turns_total;
    __syncthreads();  // a thread has one row's total, and its neighbour's is another's
    const int index = 2 * t + warp;
    if (warp < 2 && index < group.count) {
      store(params.groups.row_of(group, index), weight_row + 2 * g, room.totals[thread],
            room.totals[64 + thread]);
    }
  }
}

template <class Cut, class Codes, class Store>
void launch_blocks(const Params<Codes>& params, const Store& store, int groups, cudaStream_t stream) {
  const int granules = params.weights.shape.granules();
  launch_kernel({.blocks = dim3(static_cast<unsigned>((granules + Cut::row_warps - 1) / Cut::row_warps),
                                static_cast<unsigned>(groups)),
                 .threads = threads_of<Cut>,
                 .stream = stream,
                 .overlaps = true},
                multiply_blocks<Codes, Cut, Store>, params, store);
}

}  // namespace nibble::block_products
