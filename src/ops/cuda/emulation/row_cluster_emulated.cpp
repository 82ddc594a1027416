// The norm of few rows after experts, compiled for the emulation.
#include "ops/rms_norm/cuda/cluster_rms_norm.cu"
