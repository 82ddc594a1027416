// The kernel of the expert layer for some tokens, compiled for the emulation.
#include "ops/moe/cuda/sm90_moe_some.cu"
