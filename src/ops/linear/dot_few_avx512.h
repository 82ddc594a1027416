// Few inputs by AVX-512 with VBMI: weights are read once, at the memory's speed if decoding keeps up
// with it.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

// Whether a step of a row is better a lane than a row.
bool are_few_inputs(int count);
// As DotKernels has them, by PairProducts or SingleProducts (chain_products512.h), for so few inputs; columns
// are a whole number of steps and values bfloat16.
template <class Products>
void avx512_few_prepare(const DotInputs& inputs, int begin, int end);
template <class Products>
void avx512_few_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                         const TotalsSink& store);

}  // namespace nibble
