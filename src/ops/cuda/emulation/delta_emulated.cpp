// The kernels of the gated delta rule, compiled for the emulation.
#include "ops/gated_delta/cuda/delta_chunks.cu"
#include "ops/gated_delta/cuda/delta_inputs.cu"
#include "ops/gated_delta/cuda/delta_norm.cu"
#include "ops/gated_delta/cuda/delta_products.cu"
#include "ops/gated_delta/cuda/delta_rows.cu"
#include "ops/gated_delta/cuda/gated_delta_cuda.cu"
