// Several inputs by AVX-512 with VBMI: too many for a step a lane (dot_few_avx512.h), too few to lay
// decoded weights out for.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

bool are_several_inputs(const DenseMatrix& matrix, int count);
// As DotKernels has it, by PairProducts or SingleProducts (chain_products512.h), for so many inputs, prepared
// as groups; columns are a whole number of steps and values bfloat16.
template <class Products>
void avx512_several_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                             const TotalsSink& store);

}  // namespace nibble
