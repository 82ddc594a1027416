// Norm, router and choice for more rows than one: norm_router_cuda's other kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/router/cuda/norm_router_cuda.h"

namespace nibble {

// Whether a block has room for an eighth of such a router.
bool norm_router_some_takes(const DenseShape& router);

// Queues it; the arguments have been checked.
void launch_norm_router_some(const NormRouterCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
