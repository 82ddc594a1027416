// The contract of dot_tile.h in AVX-512 with VBMI (eight-bit inputs want VNNI too), twice: in VDPBF16PS,
// which BF16 has, and in multiply-adds, which Intel's processors do twice as much with (chain_products512.h).
// VDPBF16PS computes, for each lane, fma(a.low, b.low, fma(a.high, b.high, c)) with subnormals as zero: given
// (k + 2, k) as (low, high), it continues the chain of one parity by two products.
#pragma once

#include "ops/linear/dot_kernels.h"

namespace nibble {

bool avx512_bf16_supported();
void avx512_bf16_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx512_bf16_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store);

bool avx512_vnni_supported();
void avx512_vnni_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx512_vnni_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store);

}  // namespace nibble
