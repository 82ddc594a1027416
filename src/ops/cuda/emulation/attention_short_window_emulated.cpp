// Attention for short windows of few sequences, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_short_window.cu"
