// What a warp of a multiplying warpgroup leaves of its granule: totals of two rows of weights for columns
// that are rows of outputs.
//
// A store is two things: value(even, odd), of the finished totals of neighbouring rows of weights, and
// put(row, weight_row, value). So the values of several columns are computed side by side, without a branch
// between them.
#pragma once

#include "ops/linear/cuda/block_operands.cuh"

namespace nibble::block_products {

// Which row of outputs a column is, -1: none, and what its totals are multiplied by, a power of two.
struct alignas(8) OutputRow {
  std::int32_t row;
  float scale;
};

template <class Codes, class Store>
struct GranuleOutputs {
  const BlockMatrices<Codes>& weights;
  const Store& store;

  // find(to, column): fills in the lane's OutputRows, to[i] that of column(i).
  template <int count, class Find>
  __device__ __forceinline__ void write(int expert, int granule, const float (&totals)[count],
                                        const Find& find) const {
    const int weight_row = granule * block_granule_rows + static_cast<int>(threadIdx.x) % 32 / 4 * 2;
    if (Codes::scaled && weights.row_scales != nullptr) {
      write_products(weight_row, totals, find, row_scales_of(weights, expert, weight_row));
    } else {
      write_products(weight_row, totals, find, NoRowScales{});
    }
  }

 private:
  template <int count, class Find, class Scales>
  __device__ __forceinline__ void write_products(int weight_row, const float (&totals)[count],
                                                 const Find& find, const Scales& of_weights) const {
    constexpr int columns = count / 2, at_once = columns < 8 ? columns : 8;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    OutputRow to[columns];
    find(to, [&](int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; });
#pragma unroll
    for (int first = 0; first < columns; first += at_once) {
      decltype(store.value(0.0f, 0.0f)) values[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int at = (first + i) / 2 * 4 + i % 2;
        const float of_row = to[first + i].scale;
        values[i] = store.value(__fmul_rn(of_weights.even_product(totals[at]), of_row),
                                __fmul_rn(of_weights.odd_product(totals[at + 2]), of_row));
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (to[first + i].row >= 0) store.put(to[first + i].row, weight_row, values[i]);
      }
    }
  }
};

}  // namespace nibble::block_products
