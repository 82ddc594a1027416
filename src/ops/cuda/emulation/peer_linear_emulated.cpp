// The dense products' kernel for few tokens over ranks, compiled for the emulation.
#include "ops/linear/cuda/sm90_bf16_peer_linear.cu"
