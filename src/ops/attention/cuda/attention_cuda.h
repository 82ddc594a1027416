// paged_attention (ops/attention/attention.h) on a GPU of compute capability 9.0, for bfloat16 queries, keys
// and values in heads of 64 dimensions.
//
// Order, a contract. Positions are cut into chunks of 64 counted from position 0, and without a window into
// splits of 4 chunks; with a window all chunks that a query sees are one split. For one query and one chunk:
//
//   scores: the tensor core's chain over the dimensions in 4 steps of 16; times scale and log2 e, rounded
//   m: the largest score that is seen; weights 2^(s - m); their sum in 4 lanes, lane t taking the positions
//      8t .. 8t + 7 and 32 + 8t .. in order, lanes added as (0 + 1) + (2 + 3)
//   o: weights rounded to bfloat16 times values, the tensor core's chain over 4 steps of 16 positions
//
// A total (m, l, o) takes in another as m' = max, each side scaled by 2^(m - m'). A split begins at (-inf, 0,
// 0) and takes in its chunks in order; the query's total begins with its sink at weight 1 (without sinks
// likewise at -inf) and takes in the splits in order; out = o / l. Chunks that a query does not see do not
// enter. So a row's bits depend on its position, its window and what it sees: not on the batch, nor on the
// prompt's cutting, nor on which of the two kernels ran.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/attention/cuda/kv_cuda.h"

namespace nibble {

inline constexpr int attention_split_chunks = 4;
inline constexpr int attention_tile = 16;  // queries (rows x heads of one KV head) that a warp takes
inline constexpr int attention_max_sequences = 1024;              // of one launch
inline constexpr int attention_partial_floats = kv_head_dim + 4;  // o, then m and l

// Rows [row_begin, row_begin + row_count) are positions first_position, ... of one sequence, whose page i
// (slots from page_table[pages_at + i] * page_size on) holds positions [i * page_size, (i + 1) * page_size).
struct SequenceCuda {
  std::int32_t row_begin = 0;
  std::int32_t row_count = 0;  // 0: padding
  std::int32_t first_position = 0;
  std::int32_t pages_at = 0;
};

// Which sequences a call serves. Those whose queries fit one tile (2 rows of gpt-oss) are cut into splits
// that blocks share; the others have rows enough to give each warp a tile and all of its positions.
enum class AttentionRows { few, many, both, all_as_many };

struct AttentionCudaWorkspace {
  float* partials = nullptr;         // [attention_partials(..)]
  std::uint32_t* arrived = nullptr;  // [sequences, kv_heads], zeroed once, 0 between launches
};

// All pointers are to device memory.
struct AttentionCudaArgs {
  const Bf16* q = nullptr;  // [rows, heads, 64], rotated
  int heads = 0;            // kv_heads x 1, 2, 4, 8 or 16; head h reads kv head h / (heads / kv_heads)
  const SequenceCuda* sequences = nullptr;
  int sequence_count = 0;
  const std::int32_t* page_table = nullptr;
  int page_size = 0;  // a multiple of 64
  KvCudaLayer cache;
  int window = 0;                // keys a query sees, itself included; 0: all
  const float* sinks = nullptr;  // [heads] logits; null: none
  float scale = 1.0f;
  std::uint8_t* out = nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h) of heads * 64 columns
  AttentionRows rows = AttentionRows::both;
  int max_splits = 0;  // at least the splits of all sequences of few rows: the room for partials
  AttentionCudaWorkspace workspace;
};

constexpr int attention_splits(int positions) {
  return (positions + attention_split_chunks * kv_chunk_slots - 1) /
         (attention_split_chunks * kv_chunk_slots);
}
// Floats for as many splits.
constexpr std::size_t attention_partials(int splits, int kv_heads) {
  return static_cast<std::size_t>(splits) * static_cast<std::size_t>(kv_heads) * attention_tile *
         attention_partial_floats;
}

// Queues the attention on the stream. A refusal names what the shapes lack.
Status attention_cuda(const AttentionCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
