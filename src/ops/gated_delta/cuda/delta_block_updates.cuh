// The updates of a block of sixteen rows: what each takes in of those before it in the block, in turn. A lane
// has a column of values with all rows, so that nothing is exchanged between two of them.
#pragma once

#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"

namespace nibble {

inline constexpr int block_columns = 32;  // of values

// Sums of sixteen rows, as products leave them: of every 8 columns n lane 4g + t has row g, columns 2t and 2t
// + 1 (4n, 4n + 1), then row g + 8.
using RowSums = float[block_columns / 2];

// Updates of a block as columns of products: sixteen bfloat16 of a column are two halves of 16 bytes. Column
// after column they are an operand of wgmma, of which so many bytes lie between eights of columns.
struct UpdateColumns {
  uint4 of[block_columns / 8][2][8];
  static constexpr int eight_bytes = 256;

  __device__ __forceinline__ void put(int column, const std::uint32_t (&words)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      of[column / 8][half][column % 8] =
          make_uint4(words[4 * half], words[4 * half + 1], words[4 * half + 2], words[4 * half + 3]);
  }
};
struct UpdateTerms {
  UpdateColumns high, low;

  // Of columns 8n to 8n + 7.
  __device__ __forceinline__ ColumnTerms columns(int n, int lane) const {
    const UpdateColumns& of_lane = lane < 16 ? high : low;
    ColumnTerms terms;
    ptx::load_matrices(terms.high[0], terms.high[1], terms.low[0], terms.low[1],
                       &of_lane.of[n][lane / 8 % 2][lane % 8]);
    return terms;
  }
};

// What all warps get of a block's updates: as they are, and what is left of them behind the chunk. They take
// the place of the sums that they are found from. There a column's rows are neighbours, with four words more,
// so that lanes meet other banks.
union BlockUpdates {
  struct {
    UpdateTerms own, left;
  };
  float columns[block_columns][delta_block + 4];
};

struct BlockRows {
  const uint4* products;      // of the chunk's keys (ProductHalf)
  const float *betas, *left;  // likewise
  int first;                  // of the block
  int open, past;             // the chunk's rows whose updates are to be found

  __device__ __forceinline__ bool all_new() const { return open <= first && past >= first + delta_block; }
  __device__ __forceinline__ bool is_new(int j) const { return first + j >= open && first + j < past; }
};

// What a block's rows take in of those before them, of row j at j - 1, and their betas.
struct UpdateFactors {
  float4 of[delta_block - 1][delta_block / 4], betas[delta_block / 4];

  __device__ __forceinline__ void load(const BlockRows& rows) {
#pragma unroll
    for (int j = 1; j < delta_block; ++j) {
#pragma unroll
      for (int four = 0; 4 * four < j; ++four)
        of[j - 1][four] = *reinterpret_cast<const float4*>(
            &rows.products[ProductHalf::place(rows.first + j, ProductHalf::own_unit(four))]);
    }
#pragma unroll
    for (int four = 0; four < delta_block / 4; ++four)
      betas[four] = *reinterpret_cast<const float4*>(rows.betas + rows.first + 4 * four);
  }
};

// Sums of sixteen rows -> a lane's column of them. By a warp.
__device__ __forceinline__ void turn_sums(const RowSums& sums,
                                          float (&columns)[block_columns][delta_block + 4], int lane,
                                          float (&own)[delta_block]) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < block_columns / 2; ++i) columns[i / 4 * 8 + 2 * t + i % 2][g + i % 4 / 2 * 8] = sums[i];
  __syncwarp();  // columns are there
#pragma unroll
  for (int j = 0; j < delta_block; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(&columns[lane][j]);
    own[j] = four.x, own[j + 1] = four.y, own[j + 2] = four.z, own[j + 3] = four.w;
  }
}

// own: what all rows ahead of the block leave of its values, by row -> updates. known(j): the update of a row
// that is not new.
template <bool all_new, class Known>
__device__ __forceinline__ void solve_block(const BlockRows& rows, const UpdateFactors& factors,
                                            const Known& known, float (&own)[delta_block]) {
  const auto end_row = [&](int j, float beta) {
    own[j] = all_new || rows.is_new(j) ? __fmul_rn(beta, own[j]) : known(j);
  };
  // Four rows at a time: those end, and all later ones take them in.
#pragma unroll
  for (int first = 0; first < delta_block; first += 4) {
    const float4 beta = factors.betas[first / 4];
    end_row(first, beta.x);
#pragma unroll
    for (int j = first + 1; j < delta_block; ++j) {
      const float4 of_row = factors.of[j - 1][first / 4];
      own[j] = fmaf(of_row.x, own[first], own[j]);
      if (j == first + 1) end_row(j, beta.y);
      if (j > first + 1) own[j] = fmaf(of_row.y, own[first + 1], own[j]);
      if (j == first + 2) end_row(j, beta.z);
      if (j > first + 2) own[j] = fmaf(of_row.z, own[first + 2], own[j]);
      if (j == first + 3) end_row(j, beta.w);
      if (j > first + 3) own[j] = fmaf(of_row.w, own[first + 3], own[j]);
    }
  }
}

// A lane's column, for products.
__device__ __forceinline__ void put_column(const float (&column)[delta_block], int lane, UpdateTerms& to) {
  std::uint32_t high[8], low[8];
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    const TermPair terms = terms_of(column[2 * pair], column[2 * pair + 1]);
    high[pair] = terms.high, low[pair] = terms.low;
  }
  to.high.put(lane, high);
  to.low.put(lane, low);
}

}  // namespace nibble
