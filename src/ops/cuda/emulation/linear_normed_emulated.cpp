// The dense products' kernel for one row that it norms, compiled for the emulation.
#include "ops/linear/cuda/sm90_bf16_linear_normed.cu"
