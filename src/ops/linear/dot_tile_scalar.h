// The contract of dot_tile.h in plain C++: the oracle of every other implementation, and the one that runs
// where nothing better does.
#pragma once

#include "ops/linear/float_inputs.h"

namespace nibble {

bool scalar_supported();
void scalar_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                     const TotalsSink& store);

// A tile at a time; see TileFunction.
void scalar_tile(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals);
void scalar_tile(const Q8Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals);
void scalar_tile(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                 InputValues values, TileTotals* totals);

}  // namespace nibble
