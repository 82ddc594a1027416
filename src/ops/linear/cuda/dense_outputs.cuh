// What becomes of the sums of a dense product: the ends of the kernels for few and for many tokens.
#pragma once

#include <cuda_bf16.h>

#include "ops/linear/cuda/linear_cuda.h"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

__device__ __forceinline__ float as_float(Bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

// Four numbers in a row, rounded; `at` is a multiple of 8 bytes.
__device__ __forceinline__ void store_rounded(void* at, float first, float second, float third,
                                              float fourth) {
  *reinterpret_cast<uint2*>(at) =
      make_uint2(ptx::pack_bf16x2(first, second), ptx::pack_bf16x2(third, fourth));
}

// An output takes sums in steps, so that what several of a thread's tokens need is read before the first of
// them is written: what a row of a tile needs, what a token needs, and the sums. They come by two rows that
// are 32 apart, or by two fours of rows.

// The biases of two fours of rows.
struct OfFours {
  std::uint32_t pairs[4]{};  // of a row and that 32 further on

  __device__ void set(int i, Bf16 first, Bf16 second) {
    pairs[i] = first.bits | static_cast<std::uint32_t>(second.bits) << 16;
  }
  __device__ Bf16 first(int i) const { return {static_cast<std::uint16_t>(pairs[i])}; }
  __device__ Bf16 second(int i) const { return {static_cast<std::uint16_t>(pairs[i] >> 16)}; }
};

// bias + sum in rows of y.
struct RowsOutput {
  const Bf16* bias;
  float* y;
  Bf16* y_bf16;
  int stride, rows;

  struct OfRow {
    int row;  // and row + 32
    Bf16 first_bias, second_bias;
  };
  struct OfToken {};
  struct OfTokenFour {};

  // Row `low` (0..31) of the tile and row low + 32.
  __device__ OfRow of_row(int tile, int low) const {
    const int row = tile * dense_tile_rows + low;
    if (bias == nullptr) return {row, {}, {}};
    return {row, row < rows ? bias[row] : Bf16{}, row + 32 < rows ? bias[row + 32] : Bf16{}};
  }
  __device__ OfToken of_token(int, int, int) const { return {}; }
  __device__ OfFours of_fours(int tile, int low) const {
    OfFours of;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * dense_tile_rows + low + i;
      of.set(i, bias != nullptr && row < rows ? bias[row] : Bf16{},
             bias != nullptr && row + 32 < rows ? bias[row + 32] : Bf16{});
    }
    return of;
  }
  __device__ OfTokenFour of_token_four(int, int, int) const { return {}; }
  __device__ static bool takes_eights(int) { return false; }
  __device__ void put_eight(int, int, int, int, const float (&)[token_group]) const {}

  __device__ void store(int row, int token, float value) const {
    if (row >= rows) return;
    const std::size_t at =
        static_cast<std::size_t>(token) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row);
    if (y != nullptr) {
      y[at] = value;
    } else {
      reinterpret_cast<__nv_bfloat16*>(y_bf16)[at] = __float2bfloat16_rn(value);
    }
  }
  __device__ float2 finish(const OfRow& of, const OfToken&, int, float first, float second) const {
    if (bias == nullptr) return make_float2(first, second);
    return make_float2(first + as_float(of.first_bias), second + as_float(of.second_bias));
  }
  __device__ void put(const OfRow& of, const OfToken& token_needs, int tile, int, int token, float first,
                      float second) const {
    const float2 pair = finish(of, token_needs, tile, first, second);
    store(of.row, token, pair.x);
    store(of.row + 32, token, pair.y);
  }
  __device__ void put_fours(const OfFours& of, const OfTokenFour&, int tile, int low, int token,
                            const float4& first, const float4& second) const {
    const auto finished = [&](int i, float one, float other) {
      return finish({0, of.first(i), of.second(i)}, {}, tile, one, other);
    };
    const float2 pairs[4] = {finished(0, first.x, second.x), finished(1, first.y, second.y),
                             finished(2, first.z, second.z), finished(3, first.w, second.w)};
    const int row = tile * dense_tile_rows + low;
    const bool in_fours =
        stride % 4 == 0 &&
        (reinterpret_cast<std::uintptr_t>(y) | 2 * reinterpret_cast<std::uintptr_t>(y_bf16)) % 16 == 0;
    if (!in_fours || row + 35 >= rows) {
#pragma unroll
      for (int i = 0; i < 4; ++i) store(row + i, token, pairs[i].x), store(row + 32 + i, token, pairs[i].y);
      return;
    }
    const std::size_t at =
        static_cast<std::size_t>(token) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row);
    if (y != nullptr) {
      *reinterpret_cast<float4*>(y + at) = make_float4(pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x);
      *reinterpret_cast<float4*>(y + at + 32) = make_float4(pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y);
    } else {
      store_rounded(y_bf16 + at, pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x);
      store_rounded(y_bf16 + at + 32, pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y);
    }
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

  struct OfRow {
    Bf16 first_bias, second_bias;
  };
  struct OfToken {
    float cos, sin;
    int slot;
  };
  struct OfTokenFour {
    float4 cos, sin;
    int slot;
  };

  __device__ OfRow of_row(int tile, int low) const {
    if (bias == nullptr) return {};
    return {bias[tile * 64 + low], bias[tile * 64 + low + 32]};
  }
  __device__ OfToken of_token(int tile, int low, int token) const {
    OfToken of{0, 0, 0};
    if (tile < heads + cache.kv_heads) of.cos = cos[token * 32 + low], of.sin = sin[token * 32 + low];
    if (tile >= heads) of.slot = kv_slots[token];
    return of;
  }
  __device__ OfFours of_fours(int tile, int low) const {
    OfFours of;
    if (bias == nullptr) return of;
#pragma unroll
    for (int i = 0; i < 4; ++i) of.set(i, bias[tile * 64 + low + i], bias[tile * 64 + low + i + 32]);
    return of;
  }
  __device__ OfTokenFour of_token_four(int tile, int low, int token) const {
    OfTokenFour of{{0, 0, 0, 0}, {0, 0, 0, 0}, 0};
    if (tile < heads + cache.kv_heads) {
      of.cos = *reinterpret_cast<const float4*>(cos + token * 32 + low);
      of.sin = *reinterpret_cast<const float4*>(sin + token * 32 + low);
    }
    if (tile >= heads) of.slot = kv_slots[token];
    return of;
  }
  __device__ float2 finish(const OfRow& row, const OfToken& of, int tile, float first, float second) const {
    if (bias != nullptr) {
      first = first + as_float(row.first_bias);
      second = second + as_float(row.second_bias);
    }
    if (tile < heads + cache.kv_heads) {
      const float turned = __fsub_rn(__fmul_rn(first, of.cos), __fmul_rn(second, of.sin));
      second = __fadd_rn(__fmul_rn(second, of.cos), __fmul_rn(first, of.sin));
      first = turned;
    }
    return make_float2(first, second);
  }
  __device__ void put(const OfRow& row, const OfToken& of, int tile, int low, int token, float first,
                      float second) const {
    const float2 pair = finish(row, of, tile, first, second);
    if (tile < heads) {
      __nv_bfloat16* const at = reinterpret_cast<__nv_bfloat16*>(q_at(tile, low, token));
      at[0] = __float2bfloat16_rn(pair.x);
      at[32] = __float2bfloat16_rn(pair.y);
    } else if (of.slot >= 0) {
      store_in_cache(tile, low, of.slot, pair);
    }
  }
  __device__ void put_fours(const OfFours& rows, const OfTokenFour& of, int tile, int low, int token,
                            const float4& first, const float4& second) const {
    const auto finished = [&](int i, float cos_of, float sin_of, float one, float other) {
      return finish({rows.first(i), rows.second(i)}, {cos_of, sin_of, 0}, tile, one, other);
    };
    const float2 pairs[4] = {finished(0, of.cos.x, of.sin.x, first.x, second.x),
                             finished(1, of.cos.y, of.sin.y, first.y, second.y),
                             finished(2, of.cos.z, of.sin.z, first.z, second.z),
                             finished(3, of.cos.w, of.sin.w, first.w, second.w)};
    if (tile >= heads && of.slot < 0) return;
    Bf16* at = nullptr;
    int further = 32;
    if (tile < heads) {
      at = q_at(tile, low, token);
    } else if (tile < heads + cache.kv_heads && cache.dtype == KvBf16::dtype) {
      at = static_cast<Bf16*>(cache.keys) +
           element<KvBf16>(chunk_at(tile - heads, of.slot), false, of.slot, low);
      further = apart<KvBf16>(false);
    }
    if (at != nullptr) {
      store_rounded(at, pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x);
      store_rounded(at + further, pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_in_cache(tile, low + i, of.slot, pairs[i]);
    }
  }
  // Values of eight slots in a row lie together for each dimension, where those begin at a multiple of eight.
  __device__ bool takes_eights(int tile) const {
    return tile >= heads + cache.kv_heads && cache.dtype == KvBf16::dtype;
  }
  // Dimension `row` of a value tile for eight tokens.
  __device__ void put_eight(int tile, int row, int token, int tokens,
                            const float (&sums)[token_group]) const {
    const float of_row = bias != nullptr ? as_float(bias[tile * 64 + row]) : 0;
    float values[token_group];
#pragma unroll
    for (int i = 0; i < token_group; ++i) values[i] = bias != nullptr ? sums[i] + of_row : sums[i];
    const int head = tile - heads - cache.kv_heads, first = kv_slots[token];
    int slots[token_group];
    bool in_row = first >= 0 && first % token_group == 0 && token + token_group <= tokens;
#pragma unroll
    for (int i = 0; i < token_group; ++i) {
      slots[i] = token + i < tokens ? kv_slots[token + i] : -1;
      in_row = in_row && slots[i] == first + i;
    }
    Bf16* const layer = static_cast<Bf16*>(cache.values);
    if (in_row) {
      *reinterpret_cast<uint4*>(layer + element<KvBf16>(chunk_at(head, first), true, first, row)) =
          make_uint4(ptx::pack_bf16x2(values[0], values[1]), ptx::pack_bf16x2(values[2], values[3]),
                     ptx::pack_bf16x2(values[4], values[5]), ptx::pack_bf16x2(values[6], values[7]));
      return;
    }
#pragma unroll
    for (int i = 0; i < token_group; ++i) {
      if (slots[i] < 0) continue;
      reinterpret_cast<__nv_bfloat16*>(
          layer)[element<KvBf16>(chunk_at(head, slots[i]), true, slots[i], row)] =
          __float2bfloat16_rn(values[i]);
    }
  }

 private:
  __device__ Bf16* q_at(int tile, int low, int token) const {
    return q +
           (static_cast<std::size_t>(token) * static_cast<std::size_t>(heads) +
            static_cast<std::size_t>(tile)) *
               64 +
           low;
  }
  __device__ std::size_t chunk_at(int head, int slot) const {
    return static_cast<std::size_t>(head) * static_cast<std::size_t>(cache.slots / kv_chunk_slots) +
           static_cast<std::size_t>(slot / kv_chunk_slots);
  }
  __device__ void store_in_cache(int tile, int low, int slot, float2 pair) const {
    const bool value = tile >= heads + cache.kv_heads;
    const std::size_t chunk = chunk_at(tile - heads - (value ? cache.kv_heads : 0), slot);
    void* const layer = value ? cache.values : cache.keys;
    if (cache.dtype == KvE4m3::dtype) {
      std::uint8_t* const at = static_cast<std::uint8_t*>(layer) + element<KvE4m3>(chunk, value, slot, low);
      at[0] = ptx::e4m3_of(pair.x);
      at[apart<KvE4m3>(value)] = ptx::e4m3_of(pair.y);
    } else {
      __nv_bfloat16* const at = static_cast<__nv_bfloat16*>(layer) + element<KvBf16>(chunk, value, slot, low);
      at[0] = __float2bfloat16_rn(pair.x);
      at[apart<KvBf16>(value)] = __float2bfloat16_rn(pair.y);
    }
  }
  template <class Kv>
  __device__ static std::size_t element(std::size_t chunk, bool value, int slot, int dimension) {
    const int in_chunk = slot % kv_chunk_slots;
    return chunk * kv_chunk_elements + static_cast<std::size_t>(value ? Kv::value_at(in_chunk, dimension)
                                                                      : Kv::key_at(in_chunk, dimension));
  }
  // How much further on the dimension is that is 32 more.
  template <class Kv>
  __device__ static int apart(bool value) {
    return value ? Kv::value_at(0, 32) : Kv::key_at(0, 32);
  }
};

// A product as its kernels take it.
struct DenseRun {
  TokenTiles x;
  DenseTiles weight;
  LinearCudaWorkspace workspace;
  int blocks;  // at most the multiprocessors
  int beside;  // bytes of shared memory
};

// Instances for both outputs are in the kernels' files.
template <class Output>
void run_few(const DenseRun& run, const Output& output, cudaStream_t stream);
// Tokens [first, past), at most linear_few_tokens, of a K that linear_takes_some. False, and nothing queued,
// if the device runs no cluster of the kernel's blocks.
template <class Output>
bool run_some(const DenseRun& run, int first, int past, const Output& output, cudaStream_t stream);
template <class Output>
void run_many(const DenseRun& run, const Output& output, cudaStream_t stream);
// One token, the norm of what norm_linear_takes.
template <class Output>
void run_normed(const DenseRun& run, const AddRmsNormCudaArgs& norm, const Output& output,
                cudaStream_t stream);

// Of a thread's sums of a tile for columns / 8 groups of tokens: their row, and token i's place among all.
__device__ __forceinline__ int low_row_of_thread() {
  return static_cast<int>(threadIdx.x) / 32 % 4 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ __forceinline__ int token_of_thread(int i) {
  return i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// What a thread's sums need to be put out: their row's needs and those of its first tokens.
template <int columns, class Output>
struct OutputNeeds {
  static constexpr int some = columns / 4 < 8 ? columns / 4 : 8;  // tokens whose needs are read together
  typename Output::OfRow of_row{};
  typename Output::OfToken of_token[some]{};

  __device__ __forceinline__ void read(const Output& output, int tile, int token, int tokens) {
    of_row = output.of_row(tile, low_row_of_thread());
    read_tokens(output, tile, token, tokens, 0);
  }
  __device__ __forceinline__ void read_tokens(const Output& output, int tile, int token, int tokens,
                                              int first) {
#pragma unroll
    for (int i = 0; i < some; ++i) {
      const int at = token + token_of_thread(first + i);
      if (at < tokens) of_token[i] = output.of_token(tile, low_row_of_thread(), at);
    }
  }
};

// This thread's sums of a tile and of columns / 8 groups of tokens, the first of which is `token`.
template <int columns, class Output>
__device__ __forceinline__ void put_out(const Output& output, int tile, int token, int tokens,
                                        const float (&totals)[columns / 2],
                                        OutputNeeds<columns, Output>& needs) {
  constexpr int some = OutputNeeds<columns, Output>::some;
#pragma unroll
  for (int first = 0; first < columns / 4; first += some) {
    if (first > 0) needs.read_tokens(output, tile, token, tokens, first);
#pragma unroll
    for (int i = 0; i < some; ++i) {
      const int at = token + token_of_thread(first + i), sum = (first + i) / 2 * 4 + i % 2;
      if (at < tokens)
        output.put(needs.of_row, needs.of_token[i], tile, low_row_of_thread(), at, totals[sum],
                   totals[sum + 2]);
    }
  }
}

}  // namespace nibble
