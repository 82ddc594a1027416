// What becomes of the sums of a dense product: the ends of the kernels for few and for many tokens.
#pragma once

#include <cuda_bf16.h>

#include "ops/linear/cuda/linear_cuda.h"

namespace nibble {

__device__ __forceinline__ float as_float(Bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

// bias + sum in rows of y.
struct RowsOutput {
  const Bf16* bias;
  float* y;
  Bf16* y_bf16;
  int stride, rows;

  __device__ void store(int row, int token, float sum) const {
    if (row >= rows) return;
    const float value = bias == nullptr ? sum : sum + as_float(bias[row]);
    const std::size_t at =
        static_cast<std::size_t>(token) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row);
    if (y != nullptr) {
      y[at] = value;
    } else {
      reinterpret_cast<__nv_bfloat16*>(y_bf16)[at] = __float2bfloat16_rn(value);
    }
  }
  // Row `low` (0..31) of the tile and row low + 32.
  __device__ void operator()(int tile, int low, int token, float first, float second) const {
    store(tile * dense_tile_rows + low, token, first);
    store(tile * dense_tile_rows + low + 32, token, second);
  }
};

// A tile is a head: of q, then k, then v.
struct QkvOutput {
  const Bf16* bias;
  int heads;
  const float* cos;
  const float* sin;
  const std::int32_t* kv_slots;
  Bf16* q;
  KvCudaLayer cache;

  __device__ void operator()(int tile, int low, int token, float first, float second) const {
    if (bias != nullptr) {
      first = first + as_float(bias[tile * 64 + low]);
      second = second + as_float(bias[tile * 64 + low + 32]);
    }
    if (tile < heads + cache.kv_heads) {
      const float c = cos[token * 32 + low], s = sin[token * 32 + low];
      const float turned = __fsub_rn(__fmul_rn(first, c), __fmul_rn(second, s));
      second = __fadd_rn(__fmul_rn(second, c), __fmul_rn(first, s));
      first = turned;
    }
    __nv_bfloat16* at;
    int apart = 32;
    if (tile < heads) {
      at = reinterpret_cast<__nv_bfloat16*>(q) +
           (static_cast<std::size_t>(token) * static_cast<std::size_t>(heads) +
            static_cast<std::size_t>(tile)) *
               64 +
           low;
    } else {
      const int slot = kv_slots[token];
      if (slot < 0) return;
      const bool value = tile >= heads + cache.kv_heads;
      const int head = tile - heads - (value ? cache.kv_heads : 0);
      const std::size_t chunk =
          static_cast<std::size_t>(head) * static_cast<std::size_t>(cache.slots / kv_chunk_slots) +
          static_cast<std::size_t>(slot / kv_chunk_slots);
      const int in_chunk = slot % kv_chunk_slots;
      at = reinterpret_cast<__nv_bfloat16*>(value ? cache.values : cache.keys) + chunk * kv_chunk_elements +
           (value ? kv_value_at(in_chunk, low) : kv_key_at(in_chunk, low));
      apart = value ? kv_value_at(0, 32) : kv_key_at(0, 32);
    }
    at[0] = __float2bfloat16_rn(first);
    at[apart] = __float2bfloat16_rn(second);
  }
};

// A product as its kernels take it.
struct DenseRun {
  TokenTiles x;
  DenseTiles weight;
  LinearCudaWorkspace workspace;
  int blocks;  // of the path for few tokens
};

// Instances for both outputs are in the kernels' files.
template <class Output>
void run_few(const DenseRun& run, const Output& output, cudaStream_t stream);
template <class Output>
void run_many(const DenseRun& run, const Output& output, cudaStream_t stream);

// This thread's sums of a tile and of columns / 8 groups of tokens, the first of which is `token`.
template <int columns, class Output>
__device__ __forceinline__ void put_out(const Output& output, int tile, int token, int tokens,
                                        const float (&totals)[columns / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const int low = warp * 8 + lane / 4;
#pragma unroll
  for (int i = 0; i < columns / 4; ++i) {
    const int at = token + i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (at < tokens) output(tile, low, at, totals[i / 2 * 4 + i % 2], totals[i / 2 * 4 + 2 + i % 2]);
  }
}

}  // namespace nibble
