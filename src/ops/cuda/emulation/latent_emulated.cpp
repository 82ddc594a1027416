// The kernels of latent attention, compiled for the emulation.
#include "ops/latent_attention/cuda/head_products.cu"
#include "ops/latent_attention/cuda/latent_heads_repack.cu"
#include "ops/latent_attention/cuda/latent_rows.cu"
#include "ops/latent_attention/cuda/latent_work.cu"
#include "ops/latent_attention/cuda/sm90_latent_attention.cu"
