// Attention for short windows of many sequences, compiled for the emulation.
#include "ops/attention/cuda/sm90_attention_window.cu"
