// The dense products' kernel for few tokens, compiled for the emulation.
#include "ops/linear/cuda/sm90_bf16_linear_few.cu"
