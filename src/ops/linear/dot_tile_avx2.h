// The contract of dot_tile.h in AVX2: eight rows a register, one lane a row.
#pragma once

#include "ops/linear/dot_tile.h"

namespace nibble {

bool avx2_supported();
void avx2_dot_bf16(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs,
                   InputValues values, TileTotals* totals);
void avx2_dot_mxfp4(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                    InputValues values, TileTotals* totals);

}  // namespace nibble
