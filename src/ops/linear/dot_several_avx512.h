// Several inputs by AVX-512 with BF16 and VBMI: too many for a step a lane (dot_few_avx512.h), too few to lay
// decoded weights out for.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

bool are_several_inputs(int count);
// As DotKernels has it, for so many inputs, prepared as groups; columns are a whole number of steps and
// values bfloat16.
void avx512_several_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                             const TotalsSink& store);

}  // namespace nibble
