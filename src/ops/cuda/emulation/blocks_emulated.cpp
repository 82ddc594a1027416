// Products with matrices in blocks, dense and of experts, compiled for the emulation.
#include "ops/linear/cuda/block_repack.cu"
#include "ops/linear/cuda/narrow_linear.cu"
#include "ops/linear/cuda/round_rows.cu"
#include "ops/linear/cuda/sm90_blocks_linear.cu"
#include "ops/moe/cuda/sm90_blocks_moe.cu"
