// gpt-oss (models/gpt_oss.h) on one GPU.
#pragma once

#include <vector>

#include "models/cuda/cuda_model.h"
#include "models/cuda/weight_placing.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "tensor/device_arena.h"

namespace nibble {

// Query heads as attention's kernels take them, a power of two for each head of keys: heads that fill a group
// up have weights of zero on both sides.
int cuda_heads(const ModelConfig& config);

// All pointers are to device memory.
struct GptOssCudaLayer {
  Bf16* attention_norm = nullptr;  // [hidden]
  DenseTiles qkv;                  // [(cuda_heads + 2 kv_heads) * head_dim, hidden]
  Bf16* qkv_bias = nullptr;        // null: without
  DenseTiles wo;                   // [hidden, cuda_heads * head_dim]
  Bf16* wo_bias = nullptr;         // null: without
  float* sinks = nullptr;          // [cuda_heads]
  int window = 0;                  // 0: full attention

  Bf16* expert_norm = nullptr;  // [hidden]
  DenseTiles router;            // [experts, hidden]
  Bf16* router_bias = nullptr;  // [experts]
  MoeMxfp4CudaWeights experts;
};

struct GptOssCudaWeights {
  Bf16* embedding = nullptr;  // [vocab, hidden]
  std::vector<GptOssCudaLayer> layers;
  Bf16* final_norm = nullptr;  // [hidden]
  DenseTiles lm_head;          // [vocab, hidden]
  float* inv_freq = nullptr;   // [head_dim / 2]
};

// What a forward writes.
struct GptOssCudaRoom {
  float* residual = nullptr;      // [rows, hidden]
  float* delta = nullptr;         // [rows, hidden]: what the last block adds to the residual
  float* few_residual = nullptr;  // [few rows, hidden]: between norm and router in one and the next norm
  Bf16* normed = nullptr;         // [rows, hidden padded to 64]
  std::uint8_t* normed_tiles = nullptr;  // token tiles of hidden columns
  std::uint8_t* wanted_tiles = nullptr;  // the same for rows whose logits are wanted
  float *cos = nullptr, *sin = nullptr;  // [rows, head_dim / 2]
  Bf16* q = nullptr;                     // [rows, cuda_heads, head_dim]
  std::uint8_t* attended = nullptr;      // token tiles of cuda_heads * head_dim columns
  float* router_logits = nullptr;        // [rows, experts]
  std::int32_t* expert_ids = nullptr;    // [rows, top_k]
  float* expert_weights = nullptr;       // [rows, top_k]
  AttentionCudaWorkspace attention;
  LinearCudaWorkspace linear;
  NormRouterCudaWorkspace router;
  MoeCudaWorkspace moe;
};

// Where everything lies; an arena without memory says how much that is.
GptOssCudaWeights lay_out_gpt_oss_weights(const ModelConfig& config, DeviceArena& arena);
GptOssCudaRoom lay_out_gpt_oss_room(const ModelConfig& config, const CudaForwardLimits& limits,
                                    int processors, DeviceArena& arena);

// Fills what was laid out.
Status place_gpt_oss_weights(const ModelConfig& config, GptOssCudaWeights& weights, WeightPlacing& placing);

// What the kernels cannot compute of a model; refused before memory is taken.
Status check_gpt_oss_cuda(const ModelConfig& config);

Result<std::unique_ptr<CudaModel>> load_gpt_oss_cuda(const ModelConfig& config,
                                                     const CudaForwardLimits& limits, WeightFeed& feed,
                                                     cudaStream_t stream);

}  // namespace nibble
