#include "ops/moe/cuda/sm90_moe_many.cuh"

namespace nibble {

Status moe_nvfp4_many_cuda(const MoeNvfp4CudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  return moe_many::launch_many(weights, args, stream);
}

}  // namespace nibble
