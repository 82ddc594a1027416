#include "ops/linear/dot_tile_scalar.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

// One step of a tile's weights as floats, column by column, so that the rows' sums are independent lanes.
struct WeightStep {
  alignas(64) float columns[dot_step][tile_rows];
  alignas(64) float scales[tile_rows];  // MXFP4 only
};

void decode_step(const Bf16Matrix& matrix, int row, int rows, int k, WeightStep& step) {
  const int cols = std::min(dot_step, matrix.cols - k);
  if (rows < tile_rows || cols < dot_step) step = {};
  for (int r = 0; r < rows; ++r) {
    const Bf16* weights = matrix.data + static_cast<std::int64_t>(row + r) * matrix.cols + k;
    for (int c = 0; c < cols; ++c) step.columns[c][r] = weights[c].to_float();
  }
}

constexpr std::array<float, 16> e2m1_values = [] {
  std::array<float, 16> values{};
  for (std::uint8_t code = 0; code < 16; ++code) values[code] = E2m1{code}.to_float();
  return values;
}();

void decode_step(const Mxfp4Checkpoint& matrix, int row, int rows, int k, WeightStep& step) {
  static_assert(dot_step == mxfp4_block);
  if (rows < tile_rows) step = {};
  for (int r = 0; r < rows; ++r) {
    const std::int64_t block = (row + r) * (matrix.cols / mxfp4_block) + k / mxfp4_block;
    const std::uint8_t* codes = matrix.blocks + block * mxfp4_block_bytes;
    step.scales[r] = E8m0{matrix.scales[block]}.to_float();
    for (int c = 0; c < dot_step; c += 2) {
      step.columns[c][r] = e2m1_values[codes[c / 2] & 15];
      step.columns[c + 1][r] = e2m1_values[codes[c / 2] >> 4];
    }
  }
}

constexpr bool has_scales(const Bf16Matrix&) { return false; }
constexpr bool has_scales(const Mxfp4Checkpoint&) { return true; }

template <class Matrix>
void multiply(const Matrix& matrix, int row, std::span<const float* const> inputs, TileTotals* totals) {
  NIBBLE_CHECK(inputs.size() <= max_tile_inputs);
  const int cols = static_cast<int>(matrix.cols);
  const int rows = static_cast<int>(std::min<std::int64_t>(tile_rows, matrix.rows - row));
  std::memset(totals, 0, inputs.size() * sizeof(TileTotals));
  WeightStep step;
  for (int k = 0; k < cols; k += dot_step) {
    decode_step(matrix, row, rows, k, step);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const float* x = inputs[i] + k;
      float padded[dot_step];
      if (cols - k < dot_step) {
        std::fill_n(std::copy_n(x, cols - k, padded), dot_step - (cols - k), 0.0f);
        x = padded;
      }
      float even[tile_rows] = {}, odd[tile_rows] = {};
      for (int c = 0; c < dot_step; c += 2) {
        for (int r = 0; r < tile_rows; ++r) even[r] += step.columns[c][r] * x[c];
        for (int r = 0; r < tile_rows; ++r) odd[r] += step.columns[c + 1][r] * x[c + 1];
      }
      for (int r = 0; r < tile_rows; ++r) {
        const float sum = even[r] + odd[r];
        totals[i][r] += has_scales(matrix) ? sum * step.scales[r] : sum;
      }
    }
  }
}

}  // namespace

bool scalar_supported() { return true; }

void scalar_dot_bf16(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues,
                     TileTotals* totals) {
  multiply(matrix, row, inputs, totals);
}

void scalar_dot_mxfp4(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                      InputValues, TileTotals* totals) {
  multiply(matrix, row, inputs, totals);
}

}  // namespace nibble
