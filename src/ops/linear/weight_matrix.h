// Weights in any format a checkpoint may have, and their products by rows.
//
// bf16, Q8 and MXFP4 are multiplied as they lie (dot_kernels.h). FP8, NVFP4 and int4 are decoded a piece at a
// time, 32 rows by 128 columns, into bfloat16, which holds their values without their outer scales exactly:
// an E4M3 code has four significant bits, the product of an E2M1 code and an E4M3 scale six. The piece's
// products are those of a bfloat16 matrix of 128 columns, by whichever kernels. So the order of additions is
//
//   total = ((0 + s_0 T_0) + s_1 T_1) + ...   over blocks of 128 columns, the last one maybe shorter,
//
// T_b is the sum over the block's columns, in the order of dot_tile.h for bfloat16 weights. s_b is a scale:
// of FP8 in blocks that of the tile of 128 x 128, of NVFP4 the matrix's one. Of int4 and of FP8 by row it is
// 1; there a row's scale, if it has one, multiplies the finished total. Each product and each sum is rounded
// to float32.
//
// Inputs that are fp8 (dot_tile.h) are rounded as they are prepared, of FP8 matrices alone.
#pragma once

#include <cstdint>
#include <variant>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {

inline constexpr int weight_block = 128;  // columns

// In float32 or in bfloat16; checkpoints have either.
struct OuterScales {
  const float* floats = nullptr;  // or
  const Bf16* narrow = nullptr;

  float operator[](std::int64_t i) const { return floats != nullptr ? floats[i] : narrow[i].to_float(); }
};

struct Fp8BlockMatrix {
  const E4m3* codes = nullptr;  // [rows, cols]
  OuterScales scales;           // [tiles of rows, tiles of columns], of 128 x 128
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t first_row = 0;  // in its tile, of the first row here
};

struct Fp8RowMatrix {
  const E4m3* codes = nullptr;  // [rows, cols]
  OuterScales scales;           // [rows]
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

struct Nvfp4Matrix {
  const std::uint8_t* codes = nullptr;  // [rows, cols / 2], the low nibble first
  const E4m3* scales = nullptr;         // [rows, cols / 16]
  float scale = 1;                      // of all values
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of 16
};

// Values are bfloat16 (formats/int4.h), without an outer scale.
struct Int4Matrix {
  const std::uint8_t* codes = nullptr;  // [rows, cols / 2], the low nibble first
  const Bf16* scales = nullptr;         // [rows, cols / 32]
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of 32
};

using WeightMatrix = std::variant<Bf16Matrix, Q8Matrix, Mxfp4Checkpoint, Fp8BlockMatrix, Fp8RowMatrix,
                                  Nvfp4Matrix, Int4Matrix>;

inline int weight_rows(const WeightMatrix& matrix) {
  return static_cast<int>(std::visit([](const auto& each) { return std::int64_t{each.rows}; }, matrix));
}
inline int weight_cols(const WeightMatrix& matrix) {
  return static_cast<int>(std::visit([](const auto& each) { return std::int64_t{each.cols}; }, matrix));
}

// Rows [begin, end) as a matrix of its own, where they lie.
WeightMatrix rows_of(const WeightMatrix& matrix, std::int64_t begin, std::int64_t end);

// As prepare_rows and multiply_rows (dot_kernels.h), in the same room.
void prepare_weight_inputs(const DotKernels& kernels, const WeightMatrix& matrix, const DotInputs& inputs,
                           int begin, int end);
void multiply_weight_rows(const DotKernels& kernels, const WeightMatrix& matrix, int begin, int end,
                          const DotInputs& inputs, const TotalsSink& store);

// One row as floats, each value rounded once: code * scale.
void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, float* values);  // [cols]

}  // namespace nibble
