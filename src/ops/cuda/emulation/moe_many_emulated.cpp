// The expert layer's kernels for many tokens, compiled for the emulation.
#include "ops/moe/cuda/sm90_int4_moe_many.cu"
#include "ops/moe/cuda/sm90_mxfp4_moe_many.cu"
#include "ops/moe/cuda/sm90_nvfp4_moe_many.cu"
#include "ops/moe/cuda/sort_slots.cu"
