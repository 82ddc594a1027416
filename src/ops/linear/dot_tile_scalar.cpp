#include "ops/linear/dot_tile_scalar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

// One step of a tile's weights as floats, column by column, so that the rows' sums are independent lanes.
struct WeightStep {
  alignas(64) float columns[dot_step][tile_rows];
  // Block formats only: the scale in two factors, as 2^-127 is subnormal and would count as zero.
  alignas(64) float scales[tile_rows], halves[tile_rows];
  // Whether products with bounded bfloat16 inputs are exact: rounding them first then changes nothing.
  bool exact_products = true;
};

bool has_exact_products(float weight) {
  const float magnitude = std::fabs(weight);
  return magnitude == 0 || (magnitude >= 0x1p-60f && magnitude < 0x1p20f);
}

void set_scale(std::uint8_t byte, int row, WeightStep& step) {
  step.scales[row] = E8m0{std::max(byte, std::uint8_t{1})}.to_float();
  step.halves[row] = byte == 0 ? 0.5f : 1.0f;
}

void decode_step(const Bf16Matrix& matrix, int row, int rows, int k, WeightStep& step) {
  const int cols = std::min(dot_step, matrix.cols - k);
  if (rows < tile_rows || cols < dot_step) step = {};
  step.exact_products = true;
  for (int r = 0; r < rows; ++r) {
    const Bf16* weights = matrix.data + static_cast<std::int64_t>(row + r) * matrix.cols + k;
    for (int c = 0; c < cols; ++c) {
      step.columns[c][r] = weights[c].to_float();
      step.exact_products = step.exact_products && has_exact_products(step.columns[c][r]);
    }
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
    set_scale(matrix.scales[block], r, step);
    for (int c = 0; c < dot_step; c += 2) {
      step.columns[c][r] = e2m1_values[codes[c / 2] & 15];
      step.columns[c + 1][r] = e2m1_values[codes[c / 2] >> 4];
    }
  }
}

void decode_step(const Q8Matrix& matrix, int row, int rows, int k, WeightStep& step) {
  static_assert(dot_step == q8_block);
  if (rows < tile_rows) step = {};
  for (int r = 0; r < rows; ++r) {
    set_scale(matrix.scales[(row + r) * (matrix.cols / q8_block) + k / q8_block], r, step);
    const std::int8_t* codes = matrix.codes + (row + r) * matrix.cols + k;
    for (int c = 0; c < dot_step; ++c) step.columns[c][r] = codes[c];
  }
}

constexpr bool has_scales(const Bf16Matrix&) { return false; }
constexpr bool has_scales(const Q8Matrix&) { return true; }
constexpr bool has_scales(const Mxfp4Checkpoint&) { return true; }

// A chain of one parity, for every row.
void add_products(const WeightStep& step, const float* x, int parity, bool fused, float (&sums)[tile_rows]) {
  for (int c = parity; c < dot_step; c += 2) {
    if (fused) {
      for (int r = 0; r < tile_rows; ++r) sums[r] = std::fma(step.columns[c][r], x[c], sums[r]);
    } else {
      for (int r = 0; r < tile_rows; ++r) sums[r] += step.columns[c][r] * x[c];
    }
  }
}

template <class Matrix>
void multiply(const Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
              TileTotals* totals) {
  NIBBLE_CHECK(inputs.size() <= max_tile_inputs);
  const int cols = static_cast<int>(matrix.cols);
  const int rows = static_cast<int>(std::min<std::int64_t>(tile_rows, matrix.rows - row));
  std::memset(totals, 0, inputs.size() * sizeof(TileTotals));
  WeightStep step;
  for (int k = 0; k < cols; k += dot_step) {
    decode_step(matrix, row, rows, k, step);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const float* x = inputs[i] + k;
      float even[tile_rows] = {}, odd[tile_rows] = {};
      const bool fused = values == InputValues::bf16 && !step.exact_products;
      add_products(step, x, 0, fused, even);
      add_products(step, x, 1, fused, odd);
      for (int r = 0; r < tile_rows; ++r) {
        const float sum = even[r] + odd[r];
        totals[i][r] += has_scales(matrix) ? sum * step.halves[r] * step.scales[r] : sum;
      }
    }
  }
}

}  // namespace

bool scalar_supported() { return true; }

void scalar_tile(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals) {
  multiply(matrix, row, inputs, values, totals);
}

void scalar_tile(const Q8Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals) {
  multiply(matrix, row, inputs, values, totals);
}

void scalar_tile(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                 InputValues values, TileTotals* totals) {
  multiply(matrix, row, inputs, values, totals);
}

void scalar_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                     const TotalsSink& store) {
  std::visit([&](const auto& each) { multiply_tiles({scalar_tile}, each, begin, end, inputs, store); },
             matrix);
}

}  // namespace nibble
