// linear (ops/linear/linear.h) on a GPU of compute capability 9.0, for bfloat16 weights and activations:
// y = x W^T + bias, added as dense_tiles.h says. A row's bits depend on nothing else: neither on the rows
// beside it, nor on which of the two paths ran, nor on the number of blocks.
//
// A path for few tokens that streams the weights once through all multiprocessors, with a kernel for up to 32
// tokens and one for more, and a path for many whose products are wide. linear_cuda takes the one that
// linear_takes_many names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/attention/cuda/kv_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {

inline constexpr int linear_few_tokens = 128;
// k64 blocks of K, at most, whose activations fit beside a ring.
inline constexpr int linear_some_blocks = 64;
inline constexpr int linear_many_columns = 160;  // of tokens that the path for many takes at a time, at most

enum class LinearPath { automatic, few, many };

// Which path is the faster one on an H200: through the 3,142 tiles of lm_head 72 tokens go in 381 us on the
// one for few and in 293 on the one for many; through gpt-oss's q, k and v and attention's output, of 80
// tiles at most, 96 in 15.7 and 10.9 on the one for few, in 16.3 and 15.8 on the other. q, k and v of 128
// take 17.8 and 16.3, but steps of 128 sequences as long, since the one for few begins sooner beside what is
// ahead.
//
// Of a K whose activations fit beside no ring the path for few takes 32 tokens at a time and reads the
// weights each time anew; the one for many reads them once.
constexpr bool linear_takes_many(const DenseShape& shape, int tokens) {
  const bool reads_once = shape.blocks() <= linear_some_blocks;
  return tokens > (shape.tiles() >= 1024 || !reads_once ? linear_few_tokens / 4 : linear_few_tokens);
}

// Whether the path for few has a launch's tokens in clusters of blocks, which leave no sums in memory.
constexpr bool linear_takes_some(const DenseShape& shape, int tokens) {
  return tokens > linear_few_tokens / 4 && shape.blocks() <= linear_some_blocks;
}

// What the kernels share between launches, made ready once before the first (clear_linear_workspace); one
// launch at a time may use it.
struct LinearCudaWorkspace {
  float* few_sums = nullptr;   // [linear_few_floats(blocks, tokens)], all absent between launches (absent.h)
  float* many_sums = nullptr;  // [linear_many_floats(blocks)]
  std::uint32_t* arrived = nullptr;  // [blocks], 0 between launches
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
};

// The columns of the kernel for few tokens that `tokens` of them take, as many as a launch has of them.
constexpr int linear_columns(int tokens) {
  return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 24 ? 24 : 32;
}
// Room for sums of tiles that several blocks work on, for up to `tokens`; blocks: the multiprocessors.
constexpr std::size_t linear_few_floats(int blocks, int tokens) {
  return static_cast<std::size_t>(blocks * dense_k_chunks) *
         static_cast<std::size_t>(dense_tile_rows * linear_columns(tokens));
}
// The same of the path for many, which automatic launches of at most linear_few_tokens / 4 never take; at
// most half as many tiles of 128 rows as there are blocks are worked on by several.
constexpr std::size_t linear_many_floats(int blocks) {
  return static_cast<std::size_t>(blocks * dense_k_chunks) *
         static_cast<std::size_t>(dense_tile_rows * linear_many_columns);
}

// All pointers are to device memory.
struct LinearCudaArgs {
  TokenTiles x;                // of weight.shape.cols
  DenseTiles weight;           // [out, in]
  const Bf16* bias = nullptr;  // [out]; null: none
  // One of the two, [x.tokens, y_stride].
  float* y = nullptr;
  Bf16* y_bf16 = nullptr;
  int y_stride = 0;  // at least out
  LinearCudaWorkspace workspace;
  LinearPath path = LinearPath::automatic;
  int blocks = 0;  // at most the multiprocessors; 0: one on each
  // Bytes of shared memory of a block that should have room beside each of this launch's: of the one before,
  // to which these come, or of the one behind, which comes to these. 0: shared_beside.
  int beside = 0;
};

// Queues what a workspace begins with, for launches of as many blocks and up to as many tokens.
void clear_linear_workspace(const LinearCudaWorkspace& workspace, int blocks, int tokens,
                            cudaStream_t stream);

// Queues the product on the stream. A refusal names what the shapes lack.
Status linear_cuda(const LinearCudaArgs& args, cudaStream_t stream);

// q, k and v of a layer in one product: bias, rotary embedding (ops/rope/rope.h) of q and k, q rounded to
// bfloat16 in rows, k and v rounded into their places in the cache.
struct QkvCudaArgs {
  TokenTiles x;                // of weight.shape.cols
  DenseTiles weight;           // [(heads + 2 kv_heads) * 64, in]: q's heads, k's, v's
  const Bf16* bias = nullptr;  // null: none
  int heads = 0;
  const float* cos = nullptr;              // [tokens, 32]
  const float* sin = nullptr;              // [tokens, 32]
  const std::int32_t* kv_slots = nullptr;  // [tokens]: where each token's key goes; -1: nowhere
  Bf16* q = nullptr;                       // [tokens, heads, 64]
  KvCudaLayer cache;
  LinearCudaWorkspace workspace;
  LinearPath path = LinearPath::automatic;
  int blocks = 0;  // as above
  int beside = 0;
};

Status qkv_cuda(const QkvCudaArgs& args, cudaStream_t stream);

// Queues the re-laying of a checkpoint's matrix, rows [rows, cols] in order; out: [shape.bytes()].
Status repack_dense_cuda(const Bf16* rows, DenseShape shape, std::uint8_t* out, cudaStream_t stream);

// Queues the laying of plain activations [tokens, stride]; out: [token_bytes(tokens)] of `cols` columns.
Status pack_tokens_cuda(const Bf16* x, int tokens, int cols, int stride, std::uint8_t* out,
                        cudaStream_t stream);

// Queues the copying of rows: token i of `out` becomes token rows[i] of `from`, whose K has as many columns.
Status gather_tokens_cuda(TokenTiles from, int cols, const std::int32_t* rows, int count, std::uint8_t* out,
                          cudaStream_t stream);

}  // namespace nibble
