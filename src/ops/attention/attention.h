// kv_append stores a step's keys and values in their pages; paged_attention reads them back.
//
// For row (a query at position p) and head h, over keys j in (p - window, p] (all keys up to p without a
// window):
//
//   out = sum_j e^(s_j - m) v_j / (e^(sink - m) + sum_j e^(s_j - m)),   s_j = scale * q . k_j
//
// Order, a contract: positions are cut into splits of kv_split counted from position 0, whatever the window
// or the chunking. A split sums over its keys in order, relative to its own maximum; splits are then added
// in index order relative to the maximum over all of them and the sink, which enters first and once. So a
// row's bits do not depend on the batch, the chunk it came in, or the thread that ran it.
#pragma once

#include <span>

#include "ops/attention/paged_kv.h"
#include "ops/op_context.h"

namespace nibble {

inline constexpr int kv_split = 256;  // positions

struct KvAppendArgs {
  const float* keys = nullptr;    // [rows, kv_heads, head_dim], rotated
  const float* values = nullptr;  // [rows, kv_heads, head_dim]
  std::span<const SequenceRows> sequences;
  KvLayer cache;
};

// Rounds to the cache's dtype.
void kv_append(OpContext& context, const KvAppendArgs& args);

struct PagedAttentionArgs {
  const float* q = nullptr;  // [rows, heads, head_dim], rotated
  int heads = 0;             // a multiple of cache.kv_heads; head h reads kv head h / (heads / kv_heads)
  std::span<const SequenceRows> sequences;
  KvLayer cache;
  int window = 0;                // keys a query sees, itself included; 0: all
  const float* sinks = nullptr;  // [heads] logits; null: none
  float scale = 1.0f;
  float* out = nullptr;  // [rows, heads, head_dim]
};

// Head sizes that paged_attention takes: multiples of 32 up to 256.
bool attention_takes_head_dim(std::int64_t head_dim);
void paged_attention(OpContext& context, const PagedAttentionArgs& args);

}  // namespace nibble
