// The contract of dot_tile.h in AVX2: eight rows a register, one lane a row.
#pragma once

#include "ops/linear/float_inputs.h"

namespace nibble {

bool avx2_supported();
void avx2_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx2_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                   const TotalsSink& store);

// A tile at a time; see TileFunction.
void avx2_tile(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
               TileTotals* totals);
void avx2_tile(const Q8Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
               TileTotals* totals);
void avx2_tile(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
               InputValues values, TileTotals* totals);

}  // namespace nibble
