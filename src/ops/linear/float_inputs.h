// Inputs as plain floats, and the loop over tiles and inputs of the kernels that take them so.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/linear/dot_kernels.h"

namespace nibble {

// What dot_tile.h says of bfloat16 inputs.
inline float bounded_bf16_input(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude < smallest_bf16_input) return 0.0f;
  if (magnitude >= infinite_bf16_input) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return x;  // a NaN too
}

inline int whole_steps(int cols) { return (cols + dot_step - 1) / dot_step * dot_step; }

// Prepared: [count, whole_steps(cols)], padded with zeros.
void prepare_float_inputs(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);

// Inputs of one call of a tile function: their totals stay in the first-level cache.
inline constexpr int max_tile_inputs = 64;

// Products of rows [row, row + tile_rows) of a matrix with each of at most max_tile_inputs inputs, each
// whole_steps(cols) floats long. Rows past the end give zeros.
template <class Matrix>
using TileFunction = void (*)(const Matrix& matrix, int row, std::span<const float* const> inputs,
                              InputValues values, TileTotals* totals);

template <class Matrix>
void multiply_tiles(TileFunction<Matrix> tile, const Matrix& matrix, int begin, int end,
                    const DotInputs& inputs, const TotalsSink& store) {
  const float* const prepared = reinterpret_cast<const float*>(inputs.prepared);
  const std::int64_t stride = whole_steps(inputs.rows.cols);
  const float* each[max_tile_inputs];
  TileTotals totals[max_tile_inputs];
  for (int first = 0; first < inputs.rows.count; first += max_tile_inputs) {
    const int count = std::min(max_tile_inputs, inputs.rows.count - first);
    for (int i = 0; i < count; ++i) each[i] = prepared + (first + i) * stride;
    for (int row = begin; row < end; row += tile_rows) {
      tile(matrix, row, {each, static_cast<std::size_t>(count)}, inputs.values, totals);
      for (int i = 0; i < count; ++i) store(row, first + i, totals[i]);
    }
  }
}

}  // namespace nibble
