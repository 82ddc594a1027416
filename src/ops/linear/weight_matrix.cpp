#include "ops/linear/weight_matrix.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "formats/e4m3_row.h"
#include "formats/fp8_block.h"
#include "formats/int4.h"
#include "formats/nvfp4.h"
#include "ops/linear/input_parts.h"

namespace nibble {
namespace {

static_assert(weight_block == fp8_tile && weight_block % nvfp4_block == 0 && weight_block % int4_group == 0 &&
              weight_block % dot_step == 0);

int blocks_of(const DotInputs& inputs) { return (inputs.rows.cols + weight_block - 1) / weight_block; }

int block_width(const DotInputs& inputs, int block) {
  return std::min(weight_block, inputs.rows.cols - block * weight_block);
}

// The inputs as one block of columns meets them, with room of its own: floats of 128 columns, whole groups of
// inputs, which is the most that kernels prepare. Where their values lie is told when they are prepared.
DotInputs block_inputs(const DotInputs& inputs, int block) {
  const std::size_t groups = static_cast<std::size_t>((inputs.rows.count + input_group - 1) / input_group);
  DotInputs part = inputs;
  part.rows = {.count = inputs.rows.count, .cols = block_width(inputs, block)};
  part.values = beside_bf16(inputs.values);
  part.prepared += static_cast<std::size_t>(block) * groups * input_group * weight_block * sizeof(float);
  return part;
}

// The kernels' choice of a form goes by the kind of matrix alone.
Bf16Matrix shape_of_block(const DotInputs& part) { return {nullptr, range_rows, part.rows.cols}; }

template <class Matrix>
constexpr bool is_fp8 = std::is_same_v<Matrix, Fp8BlockMatrix> || std::is_same_v<Matrix, Fp8RowMatrix>;

// Of a group's inputs, what each is multiplied by before it is rounded to E4M3; 0: it stays as it is.
using RowFactors = std::array<float, input_group>;

template <class Matrix>
RowFactors row_factors(const DotInputs& inputs, int begin, int end) {
  RowFactors factors{};
  if (!is_fp8<Matrix> || inputs.values != InputValues::fp8) return factors;
  for (int i = begin; i < end; ++i)
    factors[static_cast<std::size_t>(i - begin)] =
        e4m3_row_factor({inputs.rows[i], static_cast<std::size_t>(inputs.rows.cols)});
  return factors;
}

// Inputs [begin, end) of a group, their columns of one block side by side as the kernels read them.
void prepare_block(const DotKernels& kernels, const DotInputs& inputs, const RowFactors& factors, int block,
                   int begin, int end) {
  DotInputs part = block_inputs(inputs, block);
  const int width = part.rows.cols;
  float values[input_group * weight_block];
  std::int32_t places[most_inputs_of_part];
  for (int i = begin; i < end; ++i) {
    places[i] = i - begin;
    round_to_e4m3({inputs.rows[i] + block * weight_block, static_cast<std::size_t>(width)},
                  factors[static_cast<std::size_t>(i - begin)], values + (i - begin) * width);
  }
  part.rows.first = values;
  part.rows.slots = places;
  prepare_rows(kernels, shape_of_block(part), part, begin, end);
}

constexpr std::array<Bf16, 256> e4m3_values = [] {
  std::array<Bf16, 256> values{};
  for (std::size_t code = 0; code < 256; ++code)
    values[code] = Bf16::from_float(E4m3{static_cast<std::uint8_t>(code)}.to_float());
  return values;
}();
constexpr std::array<float, 16> e2m1_values = [] {
  std::array<float, 16> values{};
  for (std::size_t code = 0; code < 16; ++code)
    values[code] = E2m1{static_cast<std::uint8_t>(code)}.to_float();
  return values;
}();

// A piece [rows, cols] from row and column on, without the outer scale.
template <class Fp8Matrix>
requires is_fp8<Fp8Matrix>
void decode_piece(const Fp8Matrix& matrix, int row, int rows, int col, int cols, Bf16* to) {
  for (int r = 0; r < rows; ++r) {
    const E4m3* codes = matrix.codes + (row + r) * matrix.cols + col;
    for (int c = 0; c < cols; ++c) *to++ = e4m3_values[codes[c].bits];
  }
}
void decode_piece(const Nvfp4Matrix& matrix, int row, int rows, int col, int cols, Bf16* to) {
  for (int r = 0; r < rows; ++r) {
    const std::int64_t first = (row + r) * matrix.cols + col;
    for (int c = 0; c < cols; c += nvfp4_block) {
      const float scale = matrix.scales[(first + c) / nvfp4_block].to_float();
      // Exact, so that cutting a float in two rounds nothing.
      std::array<Bf16, 16> values;
      for (std::size_t code = 0; code < 16; ++code)
        values[code] = Bf16::from_float(e2m1_values[code] * scale);
      const std::uint8_t* codes = matrix.codes + (first + c) / 2;
      for (int pair = 0; pair < nvfp4_block / 2; ++pair) {
        *to++ = values[codes[pair] & 15];
        *to++ = values[codes[pair] >> 4];
      }
    }
  }
}

void decode_piece(const Int4Matrix& matrix, int row, int rows, int col, int cols, Bf16* to) {
  for (int r = 0; r < rows; ++r) {
    const std::int64_t first = (row + r) * matrix.cols + col;
    for (int c = 0; c < cols; c += int4_group) {
      const std::array<Bf16, 16> values = int4_values(matrix.scales[(first + c) / int4_group]);
      const std::uint8_t* codes = matrix.codes + (first + c) / 2;
      for (int pair = 0; pair < int4_group / 2; ++pair) {
        *to++ = values[codes[pair] & 15];
        *to++ = values[codes[pair] >> 4];
      }
    }
  }
}

float outer_scale(const Fp8BlockMatrix& matrix, int row, int block) {
  return matrix.scales[(matrix.first_row + row) / fp8_tile * fp8_tiles(matrix.cols) + block];
}
float outer_scale(const Fp8RowMatrix&, int, int) { return 1.0f; }
float outer_scale(const Nvfp4Matrix& matrix, int, int) { return matrix.scale; }
float outer_scale(const Int4Matrix&, int, int) { return 1.0f; }

// From `row` on, rows that have the same outer scales of blocks.
int rows_of_one_scale(const Fp8BlockMatrix& matrix, int row) {
  return fp8_tile - static_cast<int>((matrix.first_row + row) % fp8_tile);
}
int rows_of_one_scale(const Fp8RowMatrix&, int) { return range_rows; }
int rows_of_one_scale(const Nvfp4Matrix&, int) { return range_rows; }
int rows_of_one_scale(const Int4Matrix&, int) { return range_rows; }

// What a row's finished total is multiplied by.
template <class Matrix>
constexpr bool has_row_scales = std::is_same_v<Matrix, Fp8RowMatrix>;
template <class Matrix>
float row_scale(const Matrix& matrix, int row) {
  if constexpr (has_row_scales<Matrix>) return matrix.scales[row];
  return 1.0f;
}

// Rows [row, row + rows) of one range by at most most_inputs_of_part inputs.
template <class Matrix>
void multiply_range(const DotKernels& kernels, const Matrix& matrix, int row, int rows,
                    const DotInputs& inputs, const TotalsSink& store) {
  constexpr int tiles = range_rows / tile_rows;
  alignas(64) Bf16 piece[range_rows * weight_block];
  alignas(64) TileTotals totals[tiles][most_inputs_of_part];
  const int count = inputs.rows.count;
  for (auto& tile : totals) std::fill_n(tile[0], count * tile_rows, 0.0f);
  for (int block = 0; block < blocks_of(inputs); ++block) {
    const DotInputs part = block_inputs(inputs, block);
    decode_piece(matrix, row, rows, block * weight_block, part.rows.cols, piece);
    // A range lies in two tiles of scales at most.
    const int border = rows_of_one_scale(matrix, row);
    const float scale = outer_scale(matrix, row, block);
    const float next = border < rows ? outer_scale(matrix, row + border, block) : scale;
    const auto add = [&](int from, int input, const float* sums) {
      float* to = totals[from / tile_rows][input];
      for (int r = 0; r < tile_rows; ++r) to[r] += sums[r] * (from + r < border ? scale : next);
    };
    multiply_rows(kernels, Bf16Matrix{piece, rows, part.rows.cols}, 0, rows, part, TotalsSink(add));
  }
  for (int from = 0; from < rows; from += tile_rows) {
    TileTotals* const of_tile = totals[from / tile_rows];
    if constexpr (has_row_scales<Matrix>) {
      for (int r = 0; r < std::min(tile_rows, rows - from); ++r) {
        const float scale = row_scale(matrix, row + from + r);
        for (int input = 0; input < count; ++input) of_tile[input][r] *= scale;
      }
    }
    for (int input = 0; input < count; ++input) store(row + from, input, of_tile[input]);
  }
}

template <class T>
const T* moved(const T* pointer, std::int64_t by) {
  return pointer == nullptr ? nullptr : pointer + by;
}

OuterScales moved(const OuterScales& scales, std::int64_t by) {
  return {moved(scales.floats, by), moved(scales.narrow, by)};
}

WeightMatrix piece_of(const Bf16Matrix& matrix, std::int64_t begin, std::int64_t rows) {
  return Bf16Matrix{moved(matrix.data, begin * matrix.cols), static_cast<int>(rows), matrix.cols};
}
WeightMatrix piece_of(const Q8Matrix& matrix, std::int64_t begin, std::int64_t rows) {
  return Q8Matrix{moved(matrix.codes, begin * matrix.cols),
                  moved(matrix.scales, begin * matrix.cols / q8_block), rows, matrix.cols};
}
WeightMatrix piece_of(const Mxfp4Checkpoint& matrix, std::int64_t begin, std::int64_t rows) {
  return Mxfp4Checkpoint{moved(matrix.blocks, begin * matrix.cols / 2),
                         moved(matrix.scales, begin * matrix.cols / mxfp4_block), rows, matrix.cols};
}
WeightMatrix piece_of(const Fp8BlockMatrix& matrix, std::int64_t begin, std::int64_t rows) {
  const std::int64_t first = matrix.first_row + begin, tiles = first / fp8_tile * fp8_tiles(matrix.cols);
  return Fp8BlockMatrix{.codes = moved(matrix.codes, begin * matrix.cols),
                        .scales = moved(matrix.scales, tiles),
                        .rows = rows,
                        .cols = matrix.cols,
                        .first_row = first % fp8_tile};
}
WeightMatrix piece_of(const Fp8RowMatrix& matrix, std::int64_t begin, std::int64_t rows) {
  return Fp8RowMatrix{moved(matrix.codes, begin * matrix.cols), moved(matrix.scales, begin), rows,
                      matrix.cols};
}
WeightMatrix piece_of(const Nvfp4Matrix& matrix, std::int64_t begin, std::int64_t rows) {
  return Nvfp4Matrix{moved(matrix.codes, begin * matrix.cols / 2),
                     moved(matrix.scales, begin * matrix.cols / nvfp4_block), matrix.scale, rows,
                     matrix.cols};
}
WeightMatrix piece_of(const Int4Matrix& matrix, std::int64_t begin, std::int64_t rows) {
  return Int4Matrix{moved(matrix.codes, begin * matrix.cols / 2),
                    moved(matrix.scales, begin * matrix.cols / int4_group), rows, matrix.cols};
}

template <class Matrix>
constexpr bool is_decoded =
    is_fp8<Matrix> || std::is_same_v<Matrix, Nvfp4Matrix> || std::is_same_v<Matrix, Int4Matrix>;

}  // namespace

WeightMatrix rows_of(const WeightMatrix& matrix, std::int64_t begin, std::int64_t end) {
  NIBBLE_CHECK(begin >= 0 && begin <= end && end <= weight_rows(matrix));
  return std::visit([&](const auto& each) { return piece_of(each, begin, end - begin); }, matrix);
}

void prepare_weight_inputs(const DotKernels& kernels, const WeightMatrix& matrix, const DotInputs& inputs,
                           int begin, int end) {
  std::visit(
      [&](const auto& each) {
        if constexpr (!is_decoded<std::remove_cvref_t<decltype(each)>>) {
          prepare_rows(kernels, each, inputs, begin, end);
        } else {
          NIBBLE_CHECK(inputs.rows.count <= most_inputs_of_part);
          for (int first = begin; first < end; first += input_group) {
            const int last = std::min(first + input_group, end);
            const RowFactors factors = row_factors<std::remove_cvref_t<decltype(each)>>(inputs, first, last);
            for (int block = 0; block < blocks_of(inputs); ++block)
              prepare_block(kernels, inputs, factors, block, first, last);
          }
        }
      },
      matrix);
}

void multiply_weight_rows(const DotKernels& kernels, const WeightMatrix& matrix, int begin, int end,
                          const DotInputs& inputs, const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        if constexpr (!is_decoded<std::remove_cvref_t<decltype(each)>>) {
          multiply_rows(kernels, each, begin, end, inputs, store);
        } else {
          NIBBLE_CHECK(begin % range_rows == 0 && inputs.rows.count <= most_inputs_of_part);
          for (int row = begin; row < end; row += range_rows)
            multiply_range(kernels, each, row, std::min(range_rows, end - row), inputs, store);
        }
      },
      matrix);
}

void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, float* values) {
  std::visit(
      [&](const auto& each) {
        using Matrix = std::remove_cvref_t<decltype(each)>;
        const std::size_t cols = static_cast<std::size_t>(each.cols);
        if constexpr (std::is_same_v<Matrix, Bf16Matrix>) {
          for (int c = 0; c < each.cols; ++c) values[c] = each.data[row * each.cols + c].to_float();
        } else if constexpr (std::is_same_v<Matrix, Q8Matrix>) {
          for (std::int64_t c = 0; c < each.cols; ++c) {
            const E8m0 scale{each.scales[(row * each.cols + c) / q8_block]};
            values[c] = static_cast<float>(each.codes[row * each.cols + c]) * scale.to_float();
          }
        } else if constexpr (std::is_same_v<Matrix, Mxfp4Checkpoint>) {
          mxfp4_decode_row(each, row, {values, cols});
        } else {
          Bf16 piece[weight_block];
          for (std::int64_t col = 0; col < each.cols; col += weight_block) {
            const int width = static_cast<int>(std::min<std::int64_t>(weight_block, each.cols - col));
            decode_piece(each, static_cast<int>(row), 1, static_cast<int>(col), width, piece);
            // Of the two one is 1.
            const float scale =
                outer_scale(each, static_cast<int>(row), static_cast<int>(col) / weight_block) *
                row_scale(each, static_cast<int>(row));
            for (int c = 0; c < width; ++c) values[col + c] = piece[c].to_float() * scale;
          }
        }
      },
      matrix);
}

}  // namespace nibble
