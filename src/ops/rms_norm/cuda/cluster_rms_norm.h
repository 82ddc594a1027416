// The norm of few rows after experts, for add_rms_norm_cuda.
#pragma once

#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

// Of so many choices at most: the expert layer of more has eight teams, which leave no shared memory for such
// a block. It then begins once they have ended: with 12 and 16 sequences gpt-oss-120b made 2 % less that way.
inline constexpr int cluster_norm_slots = 32;

// Whether it is one of few rows after experts, none of whose threads has more than one lane's columns.
bool clusters_norm(const AddRmsNormCudaArgs& args);
void launch_cluster_norm(const AddRmsNormCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
