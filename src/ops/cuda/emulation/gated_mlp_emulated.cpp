// The kernels of a feed-forward that every row takes, compiled for the emulation.
#include "ops/gated_mlp/cuda/add_shared.cu"
#include "ops/gated_mlp/cuda/gate_rows.cu"
#include "ops/gated_mlp/cuda/shared_expert.cu"
