// Few inputs by AVX2: weights are read as they lie in memory, once or in two batches of inputs.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

// Whether a step of a row is better a lane than a row.
bool avx2_takes_few(const DotInputs& inputs);
// As DotKernels has them, for such inputs.
void avx2_few_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx2_few_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                       const TotalsSink& store);

}  // namespace nibble
