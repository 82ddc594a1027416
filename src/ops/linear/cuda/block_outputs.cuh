// What a warp of a multiplying warpgroup leaves of its granule: totals of two rows of weights for columns
// that are rows of outputs.
//
// A store is two things: value(even, odd), of the finished totals of neighbouring rows of weights, and
// put(row, weight_row, value). So the values of several columns are computed side by side, without a branch
// between them.
#pragma once

#include "ops/linear/cuda/block_operands.cuh"

namespace nibble::block_products {

template <class Codes, class Store>
struct GranuleOutputs {
  const BlockMatrices<Codes>& weights;
  const RowGroups& groups;
  const Store& store;

  // scale(row): of a row of outputs, a power of two.
  template <int count, class Scale>
  __device__ __forceinline__ void write(const RowGroup& group, int granule, const float (&totals)[count],
                                        const Scale& scale) const {
    constexpr int columns = count / 2, at_once = columns < 8 ? columns : 8;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int weight_row = granule * block_granule_rows + lane / 4 * 2;
    const RowScales of_weights = row_scales_of(weights, group.expert, weight_row);
    int rows[columns];
    float scales[columns];
    find_rows(rows, group, lane);
#pragma unroll
    for (int i = 0; i < columns; ++i) scales[i] = scale(rows[i]);
#pragma unroll
    for (int first = 0; first < columns; first += at_once) {
      decltype(store.value(0.0f, 0.0f)) values[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int at = (first + i) / 2 * 4 + i % 2;
        const float of_row = scales[first + i];
        values[i] = store.value(__fmul_rn(__fmul_rn(totals[at], of_weights.even), of_row),
                                __fmul_rn(__fmul_rn(totals[at + 2], of_weights.odd), of_row));
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (rows[first + i] >= 0) store.put(rows[first + i], weight_row, values[i]);
      }
    }
  }

 private:
  // The rows of outputs that the lane's columns are, all asked for before any is waited for; -1: none.
  template <int columns>
  __device__ __forceinline__ void find_rows(int (&rows)[columns], const RowGroup& group, int lane) const {
    const auto column = [&](int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; };
    if (groups.listed == nullptr) {
#pragma unroll
      for (int i = 0; i < columns; ++i) rows[i] = column(i) < group.count ? group.first + column(i) : -1;
      return;
    }
    const std::int32_t* const list = groups.rows + group.first;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      rows[i] = -1;
      if (column(i) < group.count) rows[i] = list[column(i)];
    }
  }
};

}  // namespace nibble::block_products
