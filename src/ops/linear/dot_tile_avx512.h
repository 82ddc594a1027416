// The contract of dot_tile.h in AVX-512: sixteen rows a register, one lane a row.
#pragma once

#include "ops/linear/dot_tile.h"

namespace nibble {

bool avx512_supported();
void avx512_dot_bf16(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs,
                     InputValues values, TileTotals* totals);
void avx512_dot_mxfp4(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                      InputValues values, TileTotals* totals);

}  // namespace nibble
