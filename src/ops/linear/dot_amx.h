// The contract of dot_tile.h in AMX tiles, for bfloat16 inputs of whole steps. Others go by the kernels of
// avx512_vnni.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

// Asks the system for the tiles' registers where it has not yet; the answer holds for the whole process.
bool amx_supported();
void amx_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void amx_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                  const TotalsSink& store);

}  // namespace nibble
