// kv_append stores a step's keys and values in their pages; paged_attention reads them back.
//
// For row (a query at position p) and head h, over keys j in (p - window, p] (all keys up to p without a
// window):
//
//   out = sum_j e^(s_j - m) v_j / (e^(sink - m) + sum_j e^(s_j - m)),   s_j = scale * q . k_j
//
// Order, a contract. Positions are cut into splits of kv_split counted from position 0, whatever the window
// or the chunking. Within a split, over the keys that the query sees:
//
//   q . k_j: fused multiply-adds from 0 over the dimensions in order; then times scale
//   m: the maximum of the scores; a NaN is left out here and returns through its weight
//   w_j = e^(s_j - m) by fixed_exp; their sum runs in sixteen lanes, lane l taking the positions j with
//       j % 16 = l in order; lanes are then added as a fixed tree (l with l + 8, then 4, 2, 1)
//   sum_j w_j v_j: for each dimension fused multiply-adds from 0 over the positions in order
//
// A query's total starts with the sink (weight 1 at its logit; without sinks it starts with the first split
// as it is) and takes in split after split in index order, both sides scaled to the larger maximum. So a
// row's bits depend neither on the batch, nor on the chunk it came in, nor on which thread ran which split,
// nor on the instruction set.
#pragma once

#include <cstdint>
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

// Rounds to the cache's dtype; e4m3 saturates at 448.
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
  // Room for splits of one row and KV head that run on different threads, attention_room() floats. With
  // less, such a row stays on one thread: slower, with the same result.
  std::span<float> room;
};

// Floats that let every row of at most `max_positions` positions be spread over the threads.
std::int64_t attention_room(int threads, int heads, int kv_heads, int head_dim, int max_positions);

// Head sizes that paged_attention takes: multiples of 32 up to 256.
bool attention_takes_head_dim(std::int64_t head_dim);
// Page sizes: multiples of kv_run that divide a split.
bool attention_takes_page_size(int page_size);
void paged_attention(OpContext& context, const PagedAttentionArgs& args);

}  // namespace nibble
