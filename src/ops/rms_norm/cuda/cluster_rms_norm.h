// The norm of few rows after experts, for add_rms_norm_cuda.
#pragma once

#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

// Beyond, 12 and 16 sequences of gpt-oss-120b make 2 % less that way: the expert layer of eight teams leaves
// no shared memory for such a block.
inline constexpr int cluster_norm_rows = 8;

// Whether it is one of few rows after experts, none of whose threads has more than one lane's columns.
bool clusters_norm(const AddRmsNormCudaArgs& args);
void launch_cluster_norm(const AddRmsNormCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
