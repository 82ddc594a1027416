// For one row, in one launch: what add_rms_norm_cuda and linear_cuda, or qkv_cuda, do one after the other,
// with the same bits. Each block of the product makes the norm for itself while its first weights come, so
// that nothing passes from kernel to kernel between an expert layer's end and the next layer's first
// products.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

// Whether they can be one launch: of one row, behind experts, for whose products a block has room, its
// columns as many as the product's, and the new residual not where the old one is, which blocks read that
// others would overwrite.
bool norm_linear_takes(const AddRmsNormCudaArgs& norm, const DenseShape& weight);

// The product's x is the norm, which goes nowhere else: norm.out, norm.out_tiles and x are not looked at.
Status norm_linear_cuda(const AddRmsNormCudaArgs& norm, const LinearCudaArgs& product, cudaStream_t stream);
Status norm_qkv_cuda(const AddRmsNormCudaArgs& norm, const QkvCudaArgs& product, cudaStream_t stream);

}  // namespace nibble
