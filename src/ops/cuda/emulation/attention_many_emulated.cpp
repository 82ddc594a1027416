// The attention kernel for many rows, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_many.cu"
