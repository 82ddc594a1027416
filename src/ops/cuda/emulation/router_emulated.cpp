// The router's kernel, compiled for the emulation.
#include "ops/router/cuda/route_top_k.cu"
