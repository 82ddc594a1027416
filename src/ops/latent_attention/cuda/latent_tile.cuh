// A tile of queries in a block of latent attention: where queries, vectors and weights lie in shared memory,
// and the products over a step of 64 positions.
//
// A row of queries or vectors is whole groups of 64 columns, 128 bytes, of which piece i of sixteen bytes
// lies at i ^ (row % 8): so eight lanes find theirs in different banks, whether they read two rows for scores
// or four for sums. Warps share a step's scores by 16 queries and parts of its positions, and its sums by 64
// columns of the latent.
#pragma once

#include <cstdint>

#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

inline constexpr int latent_threads = 256, latent_warps = latent_threads / 32;
inline constexpr int group_columns = 64, group_bytes = 128, piece_columns = 8;

// Bytes of shared memory of a tile.
struct LatentShared {
  int queries, vectors, weights, maxima, levels, factors, sums, all;

  NIBBLE_HOST_DEVICE constexpr LatentShared(int tile, int width) {
    const int row = latent_padded(width) * 2, parts = latent_parts(tile);
    queries = 0;
    vectors = queries + tile * row;             // two steps'
    weights = vectors + 2 * latent_step * row;  // [tile, 64] of bfloat16
    maxima = weights + tile * group_bytes;      // [parts, tile]
    levels = maxima + parts * tile * 4;         // m of a split by turns, [2, tile]
    factors = levels + 2 * tile * 4;            // [tile]
    sums = factors + tile * 4;                  // l of a split by parts, [parts, tile]
    all = sums + parts * tile * 4;
  }
};

__device__ __forceinline__ std::uint32_t latent_word(const uint4& words, int index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}
__device__ __forceinline__ uint4 latent_piece(const std::uint8_t* group, int row, int piece) {
  return *reinterpret_cast<const uint4*>(group + ((piece ^ (row % 8)) * 16));
}

// scores[i]: of positions 8i, ... of the part, for queries g and g + 8 of the warp's sixteen.
template <int eights>
__device__ __forceinline__ void latent_scores(float (&scores)[eights][4], const std::uint8_t* queries,
                                              const std::uint8_t* vectors, int groups) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4, row = groups * group_bytes;
  const std::uint8_t *query = queries + g * row, *vector = vectors + g * row;
#pragma unroll
  for (int i = 0; i < eights; ++i) scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0;
#pragma unroll 1
  for (int group = 0; group < groups; ++group, query += group_bytes, vector += group_bytes) {
    const uint4 upper[2] = {latent_piece(query, g, 2 * t), latent_piece(query, g, 2 * t + 1)};
    const uint4 lower[2] = {latent_piece(query + 8 * row, g, 2 * t),
                            latent_piece(query + 8 * row, g, 2 * t + 1)};
#pragma unroll
    for (int i = 0; i < eights; ++i) {
      const std::uint8_t* const at = vector + 8 * i * row;
      const uint4 keys[2] = {latent_piece(at, g, 2 * t), latent_piece(at, g, 2 * t + 1)};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int half = step / 2, word = step % 2 * 2;
        ptx::mma_m16n8k16_bf16(scores[i], latent_word(upper[half], word), latent_word(lower[half], word),
                               latent_word(upper[half], word + 1), latent_word(lower[half], word + 1),
                               latent_word(keys[half], word), latent_word(keys[half], word + 1));
      }
    }
  }
}

// sums[i][j]: of queries 16i + g and 16i + g + 8 over the step; column 8n + j of the warp's 64 is column n of
// product j, so that a lane has columns 16t + j and 16t + 8 + j, j from 0 to 7.
template <int sixteens>
__device__ __forceinline__ void latent_sums(float (&sums)[sixteens][8][4], const std::uint8_t* weights,
                                            const std::uint8_t* vectors, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int step = 0; step < latent_step / 16; ++step) {
    std::uint32_t values[8][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = step * 16 + half * 8 + 2 * t;
      const uint4 first = latent_piece(vectors + position * row, position, g),
                  second = latent_piece(vectors + (position + 1) * row, position + 1, g);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t a = latent_word(first, j / 2), b = latent_word(second, j / 2);
        values[j][half] = j % 2 == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
      }
    }
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
      std::uint32_t of_queries[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint8_t* const at = weights + (16 * i + g + k % 2 * 8) * group_bytes;
        of_queries[k] = *reinterpret_cast<const std::uint32_t*>(at + ((2 * step + k / 2) ^ g) * 16 + t * 4);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        ptx::mma_m16n8k16_bf16(sums[i][j], of_queries[0], of_queries[1], of_queries[2], of_queries[3],
                               values[j][0], values[j][1]);
      }
    }
  }
}

// A row into shared memory, by a warp.
__device__ __forceinline__ void fetch_latent_row(std::uint8_t* to, int row, const Bf16* from, int width) {
  for (int piece = static_cast<int>(threadIdx.x) % 32; piece < width / piece_columns; piece += 32)
    ptx::copy_to_shared(to + piece / 8 * group_bytes + (piece % 8 ^ row % 8) * 16,
                        from + piece * piece_columns);
}
__device__ __forceinline__ void fetch_latent_row(std::uint8_t* to, int row, const E4m3* from, int width) {
  for (int two = static_cast<int>(threadIdx.x) % 32; two < width / 16; two += 32) {
    const uint4 codes = *reinterpret_cast<const uint4*>(from + two * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int piece = 2 * two + half;
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t four = latent_word(codes, 2 * half + i / 2);
        words[i] = ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(i % 2 == 0 ? four : four >> 16));
      }
      *reinterpret_cast<uint4*>(to + piece / 8 * group_bytes + (piece % 8 ^ row % 8) * 16) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}
// Zeros in pieces [first, end) of a row, by a warp.
__device__ __forceinline__ void clear_latent_row(std::uint8_t* to, int row, int first, int end) {
  for (int piece = first + static_cast<int>(threadIdx.x) % 32; piece < end; piece += 32)
    *reinterpret_cast<uint4*>(to + piece / 8 * group_bytes + (piece % 8 ^ row % 8) * 16) =
        make_uint4(0, 0, 0, 0);
}

// Of levels m in whole powers of two: what a total is multiplied by as its level becomes `to`.
__device__ __forceinline__ float latent_factor(float from, float to) {
  return to == from ? 1.0f : ptx::exp2_fast(from - to);
}
// A total's side that takes in a split's.
__device__ __forceinline__ float latent_taken_in(float total, float keeps, float split, float adds) {
  return fmaf(split, adds, __fmul_rn(total, keeps));
}
inline constexpr std::uint32_t latent_unseen = 0xff800000u;  // minus infinity

}  // namespace nibble
