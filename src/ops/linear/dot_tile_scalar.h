// The contract of dot_tile.h in plain C++: the oracle of every other implementation, and the one that runs
// where nothing better does.
#pragma once

#include "ops/linear/dot_tile.h"

namespace nibble {

bool scalar_supported();
void scalar_dot_bf16(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs,
                     InputValues values, TileTotals* totals);
void scalar_dot_mxfp4(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                      InputValues values, TileTotals* totals);

}  // namespace nibble
