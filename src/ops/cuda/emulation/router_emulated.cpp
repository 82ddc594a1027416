// The router's kernels, compiled for the emulation.
#include "ops/router/cuda/norm_router.cu"
#include "ops/router/cuda/route_sigmoid.cu"
#include "ops/router/cuda/route_top_k.cu"
