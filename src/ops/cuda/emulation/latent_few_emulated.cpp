// Latent attention of few queries, compiled for the emulation.
#include "ops/latent_attention/cuda/sm90_latent_attention_few.cu"
