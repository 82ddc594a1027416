#include "ops/moe/cuda/sm90_moe_many.cuh"

namespace nibble {

WaitingGrids waiting_grids_of_int4_moe_many() { return moe_many::grids_of<Int4Granules::Layout>(); }

template Status moe_many_cuda(const MoeInt4CudaWeights&, const MoeCudaArgs&, cudaStream_t);

}  // namespace nibble
