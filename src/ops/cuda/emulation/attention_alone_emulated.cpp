// Attention for the short context of one sequence, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_alone.cu"
