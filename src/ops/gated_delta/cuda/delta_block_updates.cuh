// The updates of a block of sixteen rows: what each takes in of those before it in the block, in turn. A lane
// has a column of values with all rows, so that nothing is exchanged between two of them.
#pragma once

#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"

namespace nibble {

// Sums of a block's sixteen rows and sixteen columns of values, as products leave them: lane 4g + t has of
// columns g and g + 8 rows 2t, 2t + 1 (of 0) and 2t + 8, 2t + 9 (of 1).
struct BlockSums {
  float of[2][4];

  // Of column g, or g + 8.
  __device__ __forceinline__ float4 row(int second) const {
    return make_float4(of[0][2 * second], of[0][2 * second + 1], of[1][2 * second], of[1][2 * second + 1]);
  }
};

// Where columns lie for their lanes; four words more than the rows, so that lanes meet other banks.
struct BlockColumns {
  float of[16][delta_block + 4];
};

struct BlockRows {
  const uint4* products;  // of the chunk (ProductRow)
  const float* betas;     // likewise
  int first;              // of the block
  int open, past;         // the chunk's rows whose updates are to be found

  __device__ __forceinline__ bool all_new() const { return open <= first && past >= first + delta_block; }
  __device__ __forceinline__ bool is_new(int j) const { return first + j >= open && first + j < past; }
};

// What later rows of a block take in of four of its rows and those before them: of row j at j - 1.
struct UpdateFactors {
  float4 of[delta_block - 1];

  __device__ __forceinline__ void load(const BlockRows& rows, int four) {
#pragma unroll
    for (int j = 1; j < delta_block; ++j) {
      if (j > 4 * four)
        of[j - 1] = *reinterpret_cast<const float4*>(
            &rows.products[ProductRow::place(rows.first + j, ProductRow::own_unit(four))]);
    }
  }
};

// factors: of the first four rows. sums: what is left of the rows' values by all rows ahead of the block, and
// updates of rows that are known; afterwards those of all rows. By a warp; columns are its own.
template <bool all_new>
__device__ __forceinline__ void solve_block(const BlockRows& rows, UpdateFactors factors,
                                            BlockColumns& columns, int lane, BlockSums& sums) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
      *reinterpret_cast<float2*>(&columns.of[g + 8 * second][8 * n + 2 * t]) =
          make_float2(sums.of[n][2 * second], sums.of[n][2 * second + 1]);
  }
  __syncwarp();  // columns are there
  float* const column = columns.of[lane % 16];
  float own[delta_block];
#pragma unroll
  for (int j = 0; j < delta_block; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(column + j);
    own[j] = four.x, own[j + 1] = four.y, own[j + 2] = four.z, own[j + 3] = four.w;
  }
  const auto end_row = [&](int j, float beta) {
    const float found = __fmul_rn(beta, own[j]);
    own[j] = all_new || rows.is_new(j) ? found : column[j];
  };
  // Four rows at a time: those end, and all later ones take them in.
#pragma unroll
  for (int first = 0; first < delta_block; first += 4) {
    const float4 betas = *reinterpret_cast<const float4*>(rows.betas + rows.first + first);
    end_row(first, betas.x);
    UpdateFactors next;
#pragma unroll
    for (int j = first + 1; j < delta_block; ++j) {
      if (j == first + 4) next.load(rows, first / 4 + 1);
      const float4 of_row = factors.of[j - 1];
      own[j] = fmaf(of_row.x, own[first], own[j]);
      if (j == first + 1) end_row(j, betas.y);
      if (j > first + 1) own[j] = fmaf(of_row.y, own[first + 1], own[j]);
      if (j == first + 2) end_row(j, betas.z);
      if (j > first + 2) own[j] = fmaf(of_row.z, own[first + 2], own[j]);
      if (j == first + 3) end_row(j, betas.w);
      if (j > first + 3) own[j] = fmaf(of_row.w, own[first + 3], own[j]);
    }
    factors = next;
  }
  __syncwarp();  // columns have been read
  if (lane < 16) {
#pragma unroll
    for (int j = 0; j < delta_block; j += 4)
      *reinterpret_cast<float4*>(column + j) = make_float4(own[j], own[j + 1], own[j + 2], own[j + 3]);
  }
  __syncwarp();  // updates are there
#pragma unroll
  for (int second = 0; second < 2; ++second) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 two = *reinterpret_cast<const float2*>(&columns.of[g + 8 * second][8 * n + 2 * t]);
      sums.of[n][2 * second] = two.x;
      sums.of[n][2 * second + 1] = two.y;
    }
  }
  __syncwarp();  // and have been read
}

}  // namespace nibble
