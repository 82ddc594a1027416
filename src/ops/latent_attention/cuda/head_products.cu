// Products of heads with matrices of their own: 16 rows of weights a warp, rows of activations in eights.
// Weights and activations come from memory and the caches as the tensor core takes them: of 64 columns lane t
// of a row's four has columns 16t .. 16t + 15, and step s takes the four of them that begin at 4s. A warp's
// row 2g is the upper half's row g and row 2g + 1 the lower half's, so that a lane stores neighbours.
//
// Bytes: weights once for every 8 rows of up to 8, and for every 64 of more.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {
namespace {

constexpr int product_warps = 4, warp_rows = 16, few_eights = 1, many_eights = 8;

__device__ __forceinline__ std::uint32_t word_of(const uint4& words, int index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}
struct Sixteen {
  uint4 half[2];
  __device__ __forceinline__ void load(const Bf16* at) {
    half[0] = *reinterpret_cast<const uint4*>(at);
    half[1] = *reinterpret_cast<const uint4*>(at + 8);
  }
  // Of step `step` the operand of its columns 2t, 2t + 1 (0) or 2t + 8, 2t + 9 (1).
  __device__ __forceinline__ std::uint32_t operand(int step, int which) const {
    return word_of(half[step / 2], step % 2 * 2 + which);
  }
};

template <int eights>
__global__ void __launch_bounds__(product_warps * 32)
    head_products(const __grid_constant__ HeadProductsCudaArgs args) {
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4,
            t = lane % 4;
  const int head = static_cast<int>(blockIdx.y), padded = latent_padded(args.k);
  const int parts = (args.n + product_warps * warp_rows - 1) / (product_warps * warp_rows);
  const int group = static_cast<int>(blockIdx.x) / parts;
  const int n =
      (static_cast<int>(blockIdx.x) - group * parts) * (product_warps * warp_rows) + warp * warp_rows;
  const int first = group * eights * 8, count = min(args.rows - first, eights * 8);
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (n >= args.n) return;
  const Bf16* const even = args.weights +
                           (static_cast<std::size_t>(head) * static_cast<std::size_t>(args.n) +
                            static_cast<std::size_t>(n + 2 * g)) *
                               static_cast<std::size_t>(padded) +
                           16 * t;
  const Bf16* x[eights];
#pragma unroll
  for (int j = 0; j < eights; ++j) {  // past the last row the last: columns do not mix
    const int row = first + min(8 * j + g, count - 1);
    x[j] = args.x +
           (static_cast<std::size_t>(row) * static_cast<std::size_t>(args.heads) +
            static_cast<std::size_t>(head)) *
               static_cast<std::size_t>(padded) +
           16 * t;
  }
  float sums[eights][4] = {};
  Sixteen next[2];
  next[0].load(even);
  next[1].load(even + padded);
#pragma unroll 1
  for (int column = 0; column < padded; column += 64) {
    const Sixteen weights[2] = {next[0], next[1]};
    if (column + 64 < padded) {
      next[0].load(even + column + 64);
      next[1].load(even + padded + column + 64);
    }
#pragma unroll
    for (int j = 0; j < eights; ++j) {
      if (8 * j >= count) break;
      Sixteen of_row;
      of_row.load(x[j] + column);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::mma_m16n8k16_bf16(sums[j], weights[0].operand(step, 0), weights[1].operand(step, 0),
                               weights[0].operand(step, 1), weights[1].operand(step, 1),
                               of_row.operand(step, 0), of_row.operand(step, 1));
      }
    }
  }
  const int blocks = DenseShape{0, args.heads * args.n}.blocks();
#pragma unroll
  for (int j = 0; j < eights; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + 8 * j + 2 * t + i;
      if (8 * j + 2 * t + i >= count) continue;
      const std::uint32_t pair = ptx::pack_bf16x2(sums[j][i], sums[j][2 + i]);
      const int column = n + 2 * g;
      if (args.y != nullptr) {
        *reinterpret_cast<std::uint32_t*>(
            args.y +
            (static_cast<std::size_t>(row) * static_cast<std::size_t>(args.heads) +
             static_cast<std::size_t>(head)) *
                static_cast<std::size_t>(args.y_head) +
            column) = pair;
      } else {
        *reinterpret_cast<std::uint32_t*>(args.tiles + token_offset(blocks, row, head * args.n + column)) =
            pair;
      }
    }
  }
}

}  // namespace

Status head_products_cuda(const HeadProductsCudaArgs& args, cudaStream_t stream) {
  if (args.n < 1 || args.n % warp_rows != 0 || args.k < 1) {
    return invalid_argument("a head's matrix has rows in sixteens, not " + std::to_string(args.n) + " x " +
                            std::to_string(args.k));
  }
  if ((args.y == nullptr) == (args.tiles == nullptr))
    return invalid_argument("products of heads have one output, rows or tiles");
  if (args.y != nullptr && (args.y_head < args.n || args.y_head % 2 != 0)) {
    return invalid_argument("products of heads of " + std::to_string(args.n) + " outputs have no room in " +
                            std::to_string(args.y_head));
  }
  if (args.rows == 0) return {};
  const bool few = args.rows <= 8 * few_eights;
  const int group_rows = 8 * (few ? few_eights : many_eights);
  const int parts = (args.n + product_warps * warp_rows - 1) / (product_warps * warp_rows);
  launch_kernel({.blocks = dim3(static_cast<unsigned>(parts * ((args.rows + group_rows - 1) / group_rows)),
                                static_cast<unsigned>(args.heads)),
                 .threads = product_warps * 32,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                few ? head_products<few_eights> : head_products<many_eights>, args);
  return {};
}

}  // namespace nibble
