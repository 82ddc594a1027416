// The attention kernel for many rows of wide heads, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_wide.cu"
