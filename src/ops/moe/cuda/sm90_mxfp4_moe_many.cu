#include "ops/moe/cuda/sm90_moe_many.cuh"

namespace nibble {

WaitingGrids waiting_grids_of_mxfp4_moe_many() { return moe_many::grids_of<Mxfp4Granules::Layout>(); }

template Status moe_many_cuda(const MoeMxfp4CudaWeights&, const MoeCudaArgs&, cudaStream_t);

}  // namespace nibble
