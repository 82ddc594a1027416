// The expert layer's kernel for one row, compiled for the emulation.
#include "ops/moe/cuda/sm90_moe_row.cu"
