// paged_attention (ops/attention/attention.h) on a GPU of compute capability 9.0, for bfloat16 queries, keys
// and values in heads of 64, 128 or 256 dimensions.
//
// Order, a contract, for heads of 64. Positions are cut into steps of 128 counted from position 0. Of the
// first 16 steps each is a split of its own, behind them four are one. A total (m, l, o) of a query has
// a whole number m, of powers of two; a split's begins at (-inf, 0, 0) and takes in its steps in order:
//
//   scores s: the tensor core's chain over the dimensions in 4 steps of 16; not seen: -inf
//   m' = max(m, the largest s times c, rounded up), c = scale * log2 e
//   weights 2^(s * c - m'), the argument rounded once; their sum in 4 lanes, lane t taking positions
//      8i + 2t and 8i + 2t + 1 of each sixteen in order, sixteens added as a balanced tree
//   l' = l * 2^(m - m') + the sum, by lanes; o' = o * 2^(m - m'), which the tensor core's chain goes on from
//      with weights rounded to bfloat16 times values, over 8 steps of 16 positions
//
// The query's total begins with its sink (m its logit in powers of two, rounded up; lane 0 its weight;
// without sinks likewise (-inf, 0, 0)) and takes in the splits in order: m' = max, the total's sides times
// 2^(m - m') plus the split's times 2^(its m - m'), rounded once. out = o / l, lanes added as (0 + 1) + (2 +
// 3). What a query does not see leaves its totals as they are. Powers of two being exact, a row's bits depend
// on its position, its window and what it sees: not on the batch, nor on the prompt's cutting, nor on which
// of the kernels ran.
//
// For heads of 128 a step is 64 positions, whose keys are as many bytes. A score is a chain of 8 steps of 16
// dimensions. Lane t's sums take positions 8i + 2t and 8i + 2t + 1 of each eight; eight of them are added as
// a balanced tree. The chain with values goes over 4 steps of 16 positions. For heads of 256 it is the same,
// a score being a chain of 16 steps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/attention/cuda/kv_cuda.h"

namespace nibble {

constexpr bool attention_takes_heads_of(int head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}
// Positions of a step.
NIBBLE_HOST_DEVICE constexpr int attention_step_of(int head_dim) {
  return head_dim == kv_head_dim ? 2 * kv_chunk_slots : kv_chunk_slots;
}
inline constexpr int attention_step = attention_step_of(kv_head_dim);
inline constexpr int attention_lone_steps = 16;  // from position 0 on, splits of their own
inline constexpr int attention_split_steps = 4;  // of a later split
inline constexpr int attention_tile = 16;  // queries (rows x heads of one KV head) of a sequence of few rows
inline constexpr int attention_max_sequences = 1024;  // of one launch
// So many sequences with heads of up to 128 have a kernel of their own where their contexts are known to be
// short: clusters of more find no room, and blocks of wider heads no registers beside other kernels. For each
// KV head and eight of its queries it has a cluster for the lone steps, and later clusters for as many later
// steps each.
inline constexpr int attention_short_contexts = 1;
inline constexpr int attention_most_later_clusters = 3;
inline constexpr int attention_any_context = -1;  // later clusters: how long contexts are is not known
// The most later clusters for KV heads of so many queries: as many as run at once, two blocks a
// multiprocessor. Multiprocessors come in groups, of which clusters of eight leave some.
constexpr int attention_later_clusters(int kv_heads, int group, int processors) {
  const int at_once = 2 * (processors / 8 - 2), firsts = group > 8 ? 2 * kv_heads : kv_heads;
  const int later = at_once / firsts - 1;
  return later < 0 ? 0 : later < attention_most_later_clusters ? later : attention_most_later_clusters;
}
constexpr int attention_cluster_positions(int head_dim) {  // of each such cluster
  return attention_lone_steps * attention_step_of(head_dim);
}
// Of a query and a split: o, l by lanes, m.
NIBBLE_HOST_DEVICE constexpr int attention_partial_floats_of(int head_dim) { return head_dim + 8; }
inline constexpr int attention_partial_floats = attention_partial_floats_of(kv_head_dim);

NIBBLE_HOST_DEVICE constexpr int attention_split_of(int step) {
  return step < attention_lone_steps
             ? step
             : attention_lone_steps + (step - attention_lone_steps) / attention_split_steps;
}
NIBBLE_HOST_DEVICE constexpr int attention_split_begin(int split) {  // its first step
  return split < attention_lone_steps
             ? split
             : attention_lone_steps + (split - attention_lone_steps) * attention_split_steps;
}

// Rows [row_begin, row_begin + row_count) are positions first_position, ... of one sequence, whose page i
// (slots from page_table[pages_at + i] * page_size on) holds positions [i * page_size, (i + 1) * page_size).
struct SequenceCuda {
  std::int32_t row_begin = 0;
  std::int32_t row_count = 0;  // 0: padding
  std::int32_t first_position = 0;
  std::int32_t pages_at = 0;
};

// Which sequences a call serves. Those whose queries fit one tile (2 rows of gpt-oss) are of few rows and are
// cut into splits that blocks share; the others have rows enough to give each block a tile of its own. one:
// of one row, which all have that have any.
enum class AttentionRows { one, many, both, all_as_many };

struct AttentionCudaWorkspace {
  // [attention_partials(..)], what blocks leave for each other, read word by word as it comes; all absent
  // before and after a launch (absent.h).
  float* partials = nullptr;
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
};

// All pointers are to device memory.
struct AttentionCudaArgs {
  const Bf16* q = nullptr;  // [rows, heads, cache.head_dim], rotated
  int heads = 0;            // kv_heads x 1, 2, 4, 8 or 16; head h reads kv head h / (heads / kv_heads)
  const SequenceCuda* sequences = nullptr;
  int sequence_count = 0;
  const std::int32_t* page_table = nullptr;
  int page_size = 0;  // a multiple of 64
  KvCudaLayer cache;
  int window = 0;                // keys a query sees, itself included; 0: all
  const float* sinks = nullptr;  // [heads] logits; null: none
  float scale = 1.0f;            // above 0
  std::uint8_t* out = nullptr;   // token tiles (ops/linear/cuda/dense_tiles.h) of heads * head_dim columns
  AttentionRows rows = AttentionRows::both;
  // That the longest context needs. Later clusters that have nothing to do cost 1 to 2 % of a step.
  int later_clusters = attention_any_context;
  int max_splits = 0;  // at least the splits of all sequences of few rows: the room for partials
  // sequences, page_table, and keys and values of positions before each sequence's first_position were in
  // memory before the kernel ahead in the stream began: what may run beside that one may read them.
  bool settled = false;
  AttentionCudaWorkspace workspace;
};

constexpr int attention_splits(int positions, int head_dim = kv_head_dim) {
  return positions <= 0 ? 0 : attention_split_of((positions - 1) / attention_step_of(head_dim)) + 1;
}
// Floats for as many splits.
constexpr std::size_t attention_partials(int splits, int kv_heads, int head_dim = kv_head_dim) {
  return static_cast<std::size_t>(splits) * static_cast<std::size_t>(kv_heads) * attention_tile *
         static_cast<std::size_t>(attention_partial_floats_of(head_dim));
}

// Shared memory of a block of the kernel that takes a launch's sequences of few rows.
int attention_shared_bytes(const AttentionCudaArgs& args);

// Queues the attention on the stream. A refusal names what the shapes lack.
Status attention_cuda(const AttentionCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
