// The norm of many rows, for add_rms_norm_cuda.
#pragma once

#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

// Whether there is a group of 8 rows for every multiprocessor, and a block has room for two rows, what is
// added to them and the tile of a group.
bool streams_norm(const AddRmsNormCudaArgs& args, int processors);
void launch_streamed_norm(const AddRmsNormCudaArgs& args, int processors, cudaStream_t stream);

}  // namespace nibble
