// For heads of which a tile of the product for q, k and v is no whole one, or whose q and k are normed: what
// qkv_cuda does at its end, as a kernel of its own behind a plain product. It is apart because a head of 128
// lies in two tiles of the product, which two blocks may have.
//
// Heads of q and k are normed if there are weights, then their first dimensions are rotated
// (ops/rope/rope.h); q is rounded to bfloat16 in rows, k and v into their places in the cache. Gates beside
// heads of q are left where they are.
//
// Order. Of a head's squares lane i of 32 adds dimensions i, i + 32, ... in order, then lanes are added as a
// butterfly (16, 8, 4, 2, 1 apart); x * (1 / sqrt(sum / head_dim + eps)) * weight, one rounding a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/attention/cuda/kv_cuda.h"

namespace nibble {

// All pointers are to device memory.
struct TurnHeadsCudaArgs {
  // [rows, (heads + 2 kv_heads) * head_dim]: q's heads, k's, v's; with gates each of q's is followed by its
  // gate.
  const float* qkv = nullptr;
  bool gated = false;
  int rows = 0;
  int heads = 0;
  const Bf16* q_norm = nullptr;  // [head_dim]; null: not normed
  const Bf16* k_norm = nullptr;  // [head_dim]; null: not normed
  bool norm_less_one = false;    // factors are 1 + what the norms say
  float eps = 0;
  int rotary_dim = 0;                      // of a head, 16, 32, 64, 128 or all; 0: all
  const float* cos = nullptr;              // [rows, rotary_dim / 2]
  const float* sin = nullptr;              // [rows, rotary_dim / 2]
  const std::int32_t* kv_slots = nullptr;  // [rows]: where each row's key goes; -1: nowhere
  Bf16* q = nullptr;                       // [rows, heads, head_dim]
  KvCudaLayer cache;                       // of heads of 64, 128 or 256
};

// Whether so many of a head's dimensions can be rotated.
bool turn_heads_takes(int rotary_dim, int head_dim);

Status turn_heads_cuda(const TurnHeadsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
