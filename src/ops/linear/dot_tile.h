// The inner product every matrix op is made of, and its order of additions, which is a contract: for one
// output element the bits depend on its weights and its input alone.
//
//   K is walked in steps of 32 (a short last step is padded with zeros). Within a step the products of the
//   even k are summed in order from 0, those of the odd k likewise, and the two sums are added; the result
//   is added to the running total, which starts at 0. Each product and each sum is rounded to float32.
//
// It is the order in which the AMX tile instruction adds, so that tile, vector and scalar code can agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "formats/bf16.h"
#include "formats/mxfp4.h"

namespace nibble {

inline constexpr int dot_step = 32;
inline constexpr int tile_rows = 8;

// Dense bfloat16 weights as the checkpoint stores them.
struct Bf16Matrix {
  const Bf16* data = nullptr;  // [rows, cols]
  int rows = 0;
  int cols = 0;
};

// tile_rows rows by dot_step columns of weights as floats, column by column, so that the rows' sums are
// independent lanes.
struct WeightTile {
  alignas(64) float columns[dot_step][tile_rows];
};

inline void decode_tile(const Bf16Matrix& matrix, int row, int k, WeightTile& tile) {
  const int rows = std::min(tile_rows, matrix.rows - row);
  const int cols = std::min(dot_step, matrix.cols - k);
  if (rows < tile_rows || cols < dot_step) tile = {};
  for (int r = 0; r < rows; ++r) {
    const Bf16* weights = matrix.data + static_cast<std::int64_t>(row + r) * matrix.cols + k;
    for (int c = 0; c < cols; ++c) tile.columns[c][r] = weights[c].to_float();
  }
}

inline void decode_tile(const Mxfp4Checkpoint& matrix, int row, int k, WeightTile& tile) {
  static_assert(dot_step == mxfp4_block);
  static constexpr float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const int rows = static_cast<int>(std::min<std::int64_t>(tile_rows, matrix.rows - row));
  if (rows < tile_rows) tile = {};
  for (int r = 0; r < rows; ++r) {
    const std::int64_t block = (row + r) * (matrix.cols / mxfp4_block) + k / mxfp4_block;
    const std::uint8_t* codes = matrix.blocks + block * mxfp4_block_bytes;
    const float scale = E8m0{matrix.scales[block]}.to_float();
    for (int c = 0; c < dot_step; c += 2) {
      tile.columns[c][r] = values[codes[c / 2] & 15] * scale;
      tile.columns[c + 1][r] = values[codes[c / 2] >> 4] * scale;
    }
  }
}

// Products of rows [row, row + tile_rows) of `matrix` with each of `inputs` ([cols] floats each):
// store(i, totals) is called once an input, totals[r] belonging to row + r.
template <class Matrix, class Store>
void multiply_row_tile(const Matrix& matrix, int row, std::span<const float* const> inputs, Store store) {
  constexpr std::size_t inputs_at_once = 32;  // their totals stay in the first-level cache
  const int cols = static_cast<int>(matrix.cols);
  WeightTile tile;
  float totals[inputs_at_once][tile_rows];
  for (std::size_t first = 0; first < inputs.size(); first += inputs_at_once) {
    const std::size_t count = std::min(inputs_at_once, inputs.size() - first);
    std::fill_n(&totals[0][0], count * tile_rows, 0.0f);
    for (int k = 0; k < cols; k += dot_step) {
      decode_tile(matrix, row, k, tile);
      float padded[dot_step];
      for (std::size_t i = 0; i < count; ++i) {
        const float* x = inputs[first + i] + k;
        if (cols - k < dot_step) {
          std::fill_n(std::copy_n(x, cols - k, padded), dot_step - (cols - k), 0.0f);
          x = padded;
        }
        float even[tile_rows] = {}, odd[tile_rows] = {};
        for (int c = 0; c < dot_step; c += 2) {
          for (int r = 0; r < tile_rows; ++r) even[r] += tile.columns[c][r] * x[c];
          for (int r = 0; r < tile_rows; ++r) odd[r] += tile.columns[c + 1][r] * x[c + 1];
        }
        for (int r = 0; r < tile_rows; ++r) totals[i][r] += even[r] + odd[r];
      }
    }
    for (std::size_t i = 0; i < count; ++i) store(first + i, totals[i]);
  }
}

// The same sum for two float vectors; n is a multiple of dot_step.
inline float dot(const float* a, const float* b, int n) {
  float total = 0;
  for (int k = 0; k < n; k += dot_step) {
    float even = 0, odd = 0;
    for (int c = 0; c < dot_step; c += 2) {
      even += a[k + c] * b[k + c];
      odd += a[k + c + 1] * b[k + c + 1];
    }
    total += even + odd;
  }
  return total;
}

}  // namespace nibble
