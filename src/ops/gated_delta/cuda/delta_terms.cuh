// Products of float32 on tensor cores that take bfloat16: each number is two, the nearest bfloat16 and what
// it leaves, rounded likewise; together 16 bits of mantissa. Of the four products of two numbers the smallest
// is left out.
//
// Order: of every sixteen k, low by high, high by low, high by high, of one sum; or each of the three for
// itself over all k, and then low by high plus high by low plus high by high. What a row or a column has
// stands in that order alone, so one row's products are those of many.
#pragma once

#include <cstdint>

#include "ops/cuda/host_device.h"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

struct TermPair {
  std::uint32_t high, low;  // each of two numbers
};
__device__ __forceinline__ TermPair terms_of(float first, float second) {
  const std::uint32_t high = ptx::pack_bf16x2(first, second);
  return {high, ptx::pack_bf16x2(__fsub_rn(first, __uint_as_float(high << 16)),
                                 __fsub_rn(second, __uint_as_float(high & 0xffff0000u)))};
}

// Rows of a product, sixteen by sixteen k; a lane's part (ptx::mma_m16n8k16_bf16).
struct RowTerms {
  uint4 high, low;
};
// Of what a lane has of two rows, g and g + 8: k 2t, 2t + 1, 2t + 8, 2t + 9.
__device__ __forceinline__ RowTerms row_terms(const float4& row, const float4& row_8) {
  const TermPair a0 = terms_of(row.x, row.y), a1 = terms_of(row_8.x, row_8.y), a2 = terms_of(row.z, row.w),
                 a3 = terms_of(row_8.z, row_8.w);
  return {make_uint4(a0.high, a1.high, a2.high, a3.high), make_uint4(a0.low, a1.low, a2.low, a3.low)};
}

// Columns of a product, eight by sixteen k.
struct ColumnTerms {
  std::uint32_t high[2], low[2];
};

// sums[i] += rows by columns[i]
template <int count>
__device__ __forceinline__ void multiply_terms(float (&sums)[count][4], const RowTerms& rows,
                                               const ColumnTerms (&columns)[count], int first = 0) {
  const auto multiply = [&](const uint4& a, bool low) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i < first) continue;
      const auto& b = low ? columns[i].low : columns[i].high;
      ptx::mma_m16n8k16_bf16(sums[i], a.x, a.y, a.z, a.w, b[0], b[1]);
    }
  };
  multiply(rows.low, false);
  multiply(rows.high, true);
  multiply(rows.high, false);
}

// Sums whose three parts do not wait for each other.
template <int count>
struct PartedSums {
  float of[3][count][4] = {};

  __device__ __forceinline__ void multiply(const RowTerms& rows, const ColumnTerms (&columns)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto add = [&](float(&sums)[4], const uint4& a, const std::uint32_t(&b)[2]) {
        ptx::mma_m16n8k16_bf16(sums, a.x, a.y, a.z, a.w, b[0], b[1]);
      };
      add(of[0][i], rows.low, columns[i].high);
      add(of[1][i], rows.high, columns[i].low);
      add(of[2][i], rows.high, columns[i].high);
    }
  }
  __device__ __forceinline__ void put(float (&sums)[count][4]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = __fadd_rn(__fadd_rn(of[0][i][j], of[1][i][j]), of[2][i][j]);
    }
  }
};

// Rows of a chunk as operands, in memory and in shared memory, each in units of 16 bytes. Where a unit lies
// depends on the row: eight rows that are read together meet other banks.
template <int units>
__device__ __forceinline__ int unit_place(int row, int unit) {
  static_assert(units % 4 == 0);
  return unit ^ (row & (units < 8 ? units - 1 : 7));
}

// Keys or queries: the high terms of all dimensions, then the low ones.
template <int key_dim>
struct KeyRows {
  static constexpr int units = key_dim / 4, bytes = units * 16, steps = key_dim / 16;

  __device__ __forceinline__ static int place(int row, int unit) {
    return row * units + unit_place<units>(row, unit);
  }

  // As columns by dimensions: rows 8n to 8n + 7, of step `step`.
  __device__ __forceinline__ static ColumnTerms columns(const uint4* rows, int n, int step, int lane) {
    const int of_lane = place(lane % 8, lane / 16 * (units / 2) + lane / 8 % 2);
    ColumnTerms terms;
    ptx::load_matrices(terms.high[0], terms.high[1], terms.low[0], terms.low[1],
                       rows + moved(of_lane, 2 * step) + 8 * n * units);
    return terms;
  }
  // As columns by dimensions, of step `step`: a row that each lane names, of whose eight the first is lane %
  // 8's. All lie as row `row` of a chunk.
  __device__ __forceinline__ static ColumnTerms columns_of(const uint4* of_lane, int row, int step,
                                                           int lane) {
    const int first = unit_place<units>(row, lane / 16 * (units / 2) + lane / 8 % 2);
    ColumnTerms terms;
    ptx::load_matrices(terms.high[0], terms.high[1], terms.low[0], terms.low[1],
                       of_lane + moved(first, 2 * step));
    return terms;
  }
  // As columns by rows: dimensions 8n to 8n + 7, of the rows of block `block`.
  __device__ __forceinline__ static ColumnTerms turned_columns(const uint4* rows, int n, int block,
                                                               int lane) {
    const int of_lane = place(lane % 16, lane / 16 * (units / 2));
    ColumnTerms terms;
    ptx::load_turned_matrices(terms.high[0], terms.high[1], terms.low[0], terms.low[1],
                              rows + moved(of_lane, n) + 16 * block * units);
    return terms;
  }
  // As rows by dimensions: those of block `block`, of step `step`.
  __device__ __forceinline__ static RowTerms rows_of(const uint4* rows, int block, int step, int lane) {
    const uint4* const at = rows + 16 * block * units;
    const int of_lane = place(lane % 16, lane / 16);
    RowTerms terms;
    ptx::load_matrices(terms.high.x, terms.high.y, terms.high.z, terms.high.w, at + moved(of_lane, 2 * step));
    ptx::load_matrices(terms.low.x, terms.low.y, terms.low.z, terms.low.w,
                       at + moved(of_lane, 2 * step + units / 2));
    return terms;
  }

 private:
  // The place of a unit so many behind that at `place`, where that one's number has zeros wherever the other
  // has bits: the places of a lane's units are few, and offsets from them.
  __device__ __forceinline__ static int moved(int place, int by) { return (place ^ by % 8) + by / 8 * 8; }
};

// What row p of a chunk has of each row j before it, for a head of values, with what is left of it by then:
// k_j . q_p, in terms, of all j up to p; -(k_j . k_p), in terms, of the blocks of sixteen ahead of its own,
// and in float32 of its own. A half of the row is of its query, the other of its key; of a half the high
// terms of all j come first.
struct ProductHalf {
  static constexpr int units = 16, low = units / 2;

  __device__ __forceinline__ static int place(int row, int unit) {
    return row * units + unit_place<units>(row, unit);
  }
  // Of rows 4i to 4i + 3 of the row's own block, in float32.
  __device__ __forceinline__ static int own_unit(int i) { return 6 + i % 2 + i / 2 * low; }

  // Halves one after the other as rows of products: those of block `of_rows`, over the rows of block `block`.
  __device__ __forceinline__ static RowTerms rows(const uint4* halves, int of_rows, int block, int lane) {
    const int of_lane = lane % 16 * units + (lane / 16 ^ lane % 8 ^ 2 * block);
    const uint4* const at = halves + 16 * of_rows * units + of_lane;
    RowTerms terms;
    ptx::load_matrices(terms.high.x, terms.high.y, terms.high.z, terms.high.w, at);
    ptx::load_matrices(terms.low.x, terms.low.y, terms.low.z, terms.low.w, at + low);
    return terms;
  }
};
struct ProductRow {
  static constexpr int with_query = 0, with_key = ProductHalf::units, units = 2 * ProductHalf::units;
  static constexpr int low = ProductHalf::low;

  __device__ __forceinline__ static int place(int row, int unit) {
    return row * units + unit_place<units>(row, unit);
  }
  __device__ __forceinline__ static int own_unit(int i) { return with_key + ProductHalf::own_unit(i); }
};

}  // namespace nibble
