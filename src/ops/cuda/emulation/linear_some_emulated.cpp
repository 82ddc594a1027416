// The dense products' kernel for some tokens, compiled for the emulation.
#include "ops/linear/cuda/sm90_bf16_linear_some.cu"
