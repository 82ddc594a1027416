// A product of few rows by blocks of eight warps that share 16 operand rows of a matrix, a strand: each warp
// has parts of K, straight from memory to registers. What it found goes through shared memory, where it is
// added in order. The additions of tiles are those of dense_tiles.h.
#pragma once

#include <cstdint>

#include "ops/cuda/host_device.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble::strands {

inline constexpr int warps = 8, threads = 32 * warps;
inline constexpr int most_rows = token_group;  // of x

__device__ __forceinline__ std::uint32_t word_at(const std::uint8_t* at) {
  return __ldcg(reinterpret_cast<const std::uint32_t*>(at));
}

// A matrix as kernels take it: strands of operand rows, K's parts, a part's sums, and how parts add up.
template <class Matrix>
struct Strands;

// Two eights of rows. Lane (g, t) gets rows 2t and 2t + 1 of x by row g of the first eight in sums 0 and 1,
// and of the second in sums 2 and 3.
template <>
struct Strands<DenseTiles> {
  static constexpr int a_unit = 1;         // strands that gates and their ups are in
  static constexpr int unit_columns = 8;   // of h
  static constexpr int steps_at_once = 8;  // k16 steps whose loads are under way together
  static constexpr int tile_strands = dense_tile_rows / 16;
  DenseTiles matrix;

  struct Strand {
    const std::uint8_t *first, *second;
  };
  NIBBLE_HOST_DEVICE static int parts(const DenseTiles&) { return dense_k_chunks; }
  NIBBLE_HOST_DEVICE static int strands(const DenseTiles& of) { return of.shape.tiles() * tile_strands; }
  __device__ __forceinline__ const std::uint8_t* eight(int row) const {
    const int in_tile = row % dense_tile_rows, group = in_tile % 32 / 8 * 2 + in_tile / 32;
    return matrix.data + static_cast<std::size_t>(row / dense_tile_rows) * matrix.shape.tile_bytes() +
           group * 256;
  }
  __device__ __forceinline__ Strand unit_strand(int unit, int up, int) const {
    return {eight(unit * 8), eight(up + unit * 8)};
  }
  // Operand rows of the down projection: a tile's rows 8w .. 8w + 7, and those 32 further on.
  __device__ __forceinline__ static int out_row(int strand, int g, int sum) {
    return strand / tile_strands * dense_tile_rows + strand % tile_strands * 8 + g + sum / 2 * 32;
  }
  __device__ __forceinline__ Strand out_strand(int strand) const {
    const int row = out_row(strand, 0, 0);
    return {eight(row), eight(row + 32)};
  }
  __device__ __forceinline__ void multiply(float (&of_one)[1][4], const Strand (&strands)[1],
                                           const std::uint8_t* x, int part, int lane) const {
    float(&sums)[4] = of_one[0];
    const Strand& strand = strands[0];
    const int past = 4 * matrix.shape.chunk_begin(part + 1);
#pragma unroll 1
    for (int step = 4 * matrix.shape.chunk_begin(part); step < past; step += steps_at_once) {
      std::uint32_t a[steps_at_once][4], b[steps_at_once][2];
#pragma unroll
      for (int i = 0; i < steps_at_once; ++i) {
        if (step + i >= past) break;
        const std::size_t at = static_cast<std::size_t>(step + i) * dense_step_bytes + lane * 4;
        a[i][0] = word_at(strand.first + at), a[i][1] = word_at(strand.second + at);
        a[i][2] = word_at(strand.first + at + 128), a[i][3] = word_at(strand.second + at + 128);
        const std::uint8_t* const of_x = x + (step + i) * token_step_bytes + lane * 4;
        b[i][0] = word_at(of_x), b[i][1] = word_at(of_x + 128);
      }
#pragma unroll
      for (int i = 0; i < steps_at_once; ++i) {
        if (step + i >= past) break;
        ptx::mma_m16n8k16_bf16(sums, a[i][0], a[i][1], a[i][2], a[i][3], b[i][0], b[i][1]);
      }
    }
  }
  // The factors of a strand's parts in one of their four sums, of which tiles have none.
  struct Factors {
    __device__ __forceinline__ float of(int) const { return 1; }
  };
  __device__ __forceinline__ static Factors unit_factors(int, int, int, int) { return {}; }
  __device__ __forceinline__ static Factors out_factors(int, int) { return {}; }
  __device__ __forceinline__ static float add(float total, float sum, int part, float) {
    return part == 0 ? sum : total + sum;
  }
};

// What the warps found of a strand's parts: [parts][4][32].
using Found = float (*)[4][32];

// By the block: the sums of some strands' parts, a strand's behind the other's. Each warp's are there behind
// the next barrier.
template <class Matrix, class Strand, int count>
__device__ __forceinline__ void find(const Strands<Matrix>& of, const Strand (&strands)[count],
                                     const std::uint8_t* x, Found found) {
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = of.parts(of.matrix);
#pragma unroll 1
  for (int part = warp; part < parts; part += warps) {
    float sums[count][4] = {};
    of.multiply(sums, strands, x, part, lane);
#pragma unroll
    for (int i = 0; i < 4 * count; ++i) found[i / 4 * parts + part][i % 4][lane] = sums[i / 4][i % 4];
    __syncwarp();  // the next products need all lanes at once
  }
}

// The total of one of a strand's four sums; by whole warps where parts have factors.
template <class Matrix, class Factors>
__device__ __forceinline__ float total_of(const Strands<Matrix>& of, const Factors& factors, Found found,
                                          int sum) {
  const int parts = of.parts(of.matrix), lane = static_cast<int>(threadIdx.x) % 32;
  float total = 0;
#pragma unroll 4
  for (int part = 0; part < parts; ++part)
    total = of.add(total, found[part][sum][lane], part, factors.of(part));
  return total;
}

}  // namespace nibble::strands
