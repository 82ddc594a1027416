// Norm and router for more rows, compiled for the emulation.
#include "ops/router/cuda/norm_router_some.cu"
