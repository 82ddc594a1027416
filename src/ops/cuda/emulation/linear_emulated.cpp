// The dense products' kernels, compiled for the emulation.
#include "ops/linear/cuda/dense_repack.cu"
#include "ops/linear/cuda/linear_cuda.cu"
