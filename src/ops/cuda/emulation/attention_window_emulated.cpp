// Attention for short windows, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_window.cu"
