// The expert layer's kernels for few tokens, compiled for the emulation.
#include "ops/moe/cuda/int4_repack.cu"
#include "ops/moe/cuda/moe_steps.cu"
#include "ops/moe/cuda/mxfp4_repack.cu"
#include "ops/moe/cuda/nvfp4_repack.cu"
#include "ops/moe/cuda/sm90_moe_decode.cu"
