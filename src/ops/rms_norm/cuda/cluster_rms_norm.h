// The norm of few rows after experts, for add_rms_norm_cuda.
#pragma once

#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

// Beyond, the expert layer has eight teams, which leave no room for such a block, and its own blocks begin
// later for a norm that waits: 12 and 16 sequences of gpt-oss-120b make 2 % less that way.
inline constexpr int cluster_norm_rows = 8;

// Whether it is one of few rows after experts, none of whose threads has more than one lane's columns.
bool clusters_norm(const AddRmsNormCudaArgs& args);
void launch_cluster_norm(const AddRmsNormCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
