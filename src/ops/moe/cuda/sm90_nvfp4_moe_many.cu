#include "ops/moe/cuda/sm90_moe_many.cuh"

namespace nibble {

template Status moe_many_cuda(const MoeNvfp4CudaWeights&, const MoeCudaArgs&, cudaStream_t);

}  // namespace nibble
