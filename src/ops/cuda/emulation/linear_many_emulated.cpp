// The dense products' kernel for many tokens, compiled for the emulation.
#include "ops/linear/cuda/sm90_bf16_linear_many.cu"
