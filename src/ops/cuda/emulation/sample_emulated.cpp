// Sampling's kernels, compiled for the emulation.
#include "ops/sample/cuda/change_logits.cu"
#include "ops/sample/cuda/sample_parts.cu"
#include "ops/sample/cuda/sample_rows.cu"
#include "ops/sample/cuda/target_ranks.cu"
#include "ops/sample/cuda/unlike_logits.cu"
