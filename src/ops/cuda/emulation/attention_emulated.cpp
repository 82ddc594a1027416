// The attention kernels, compiled for the emulation.
#include "ops/attention/cuda/attention_cuda.cu"
#include "ops/attention/cuda/sm90_attention_few.cu"
