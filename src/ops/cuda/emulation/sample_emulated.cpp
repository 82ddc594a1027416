// Sampling's kernels, compiled for the emulation.
#include "ops/sample/cuda/sample_rows.cu"
