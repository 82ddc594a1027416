// Layouts of the dense products (dense_tiles.h) from plain rows. Bytes: each element read once, 16 bytes a
// thread, and written once. A thread takes 8 consecutive k of a row, which stay together in both layouts.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int repack_threads = 256;

__device__ __forceinline__ uint4 eight_of(const Bf16* row, int col, int cols) {
  if (col + 8 <= cols && reinterpret_cast<std::uintptr_t>(row + col) % 16 == 0)
    return *reinterpret_cast<const uint4*>(row + col);
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t bits = col + i < cols ? row[col + i].bits : 0u;
    words[i / 2] |= bits << (16 * (i % 2));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Runs each(row, first column) for this thread's share of the rows' eights.
template <class Each>
__device__ __forceinline__ void for_each_eight(std::size_t rows, int eights, const Each& each) {
  const std::size_t all = rows * static_cast<std::size_t>(eights);
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * repack_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * repack_threads + threadIdx.x; i < all;
       i += step) {
    each(static_cast<int>(i / static_cast<std::size_t>(eights)),
         static_cast<int>(i % static_cast<std::size_t>(eights)) * 8);
  }
}

__global__ void __launch_bounds__(repack_threads)
    dense_repack(const Bf16* rows, DenseShape shape, std::uint8_t* out) {
  const int eights = shape.padded_cols() / 8;
  for_each_eight(static_cast<std::size_t>(shape.tiles()) * dense_tile_rows, eights, [&](int row, int col) {
    *reinterpret_cast<uint4*>(out + dense_offset(shape, row, col)) =
        row < shape.rows
            ? eight_of(rows + static_cast<std::size_t>(row) * static_cast<std::size_t>(shape.cols), col,
                       shape.cols)
            : make_uint4(0, 0, 0, 0);
  });
}

__global__ void __launch_bounds__(repack_threads)
    pack_tokens(const Bf16* x, int tokens, int cols, int stride, std::uint8_t* out) {
  ptx::grid_launch_dependents();
  const DenseShape shape{0, cols};
  ptx::grid_dependency_wait();
  for_each_eight(static_cast<std::size_t>(tokens), shape.padded_cols() / 8, [&](int token, int col) {
    *reinterpret_cast<uint4*>(out + token_offset(shape.blocks(), token, col)) =
        eight_of(x + static_cast<std::size_t>(token) * static_cast<std::size_t>(stride), col, cols);
  });
}

__global__ void __launch_bounds__(repack_threads)
    gather_tokens(const std::uint8_t* from, int blocks, const std::int32_t* rows, int count,
                  std::uint8_t* out) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  for_each_eight(static_cast<std::size_t>(count), blocks * dense_k / 8, [&](int token, int col) {
    *reinterpret_cast<uint4*>(out + token_offset(blocks, token, col)) =
        *reinterpret_cast<const uint4*>(from + token_offset(blocks, rows[token], col));
  });
}

unsigned grid_of(long long eights) {
  return static_cast<unsigned>(std::clamp((eights + repack_threads - 1) / repack_threads, 1LL, 8192LL));
}

}  // namespace

Status repack_dense_cuda(const Bf16* rows, DenseShape shape, std::uint8_t* out, cudaStream_t stream) {
  if (shape.rows < 1 || shape.cols < 1) return invalid_argument("a matrix without elements has no tiles");
  launch_kernel({.blocks = dim3(grid_of(static_cast<long long>(shape.bytes() / 16))),
                 .threads = repack_threads,
                 .stream = stream},
                dense_repack, rows, shape, out);
  return {};
}

Status pack_tokens_cuda(const Bf16* x, int tokens, int cols, int stride, std::uint8_t* out,
                        cudaStream_t stream) {
  if (stride < cols)
    return invalid_argument("activations of " + std::to_string(cols) + " columns need a stride of as many");
  if (tokens == 0) return {};
  const long long eights = static_cast<long long>(tokens) * DenseShape{0, cols}.padded_cols() / 8;
  launch_kernel(
      {.blocks = dim3(grid_of(eights)), .threads = repack_threads, .stream = stream, .overlaps = true},
      pack_tokens, x, tokens, cols, stride, out);
  return {};
}

Status gather_tokens_cuda(TokenTiles from, int cols, const std::int32_t* rows, int count, std::uint8_t* out,
                          cudaStream_t stream) {
  if (cols < 1) return invalid_argument("activations without columns cannot be gathered");
  if (count == 0) return {};
  const int blocks = DenseShape{0, cols}.blocks();
  const long long eights = static_cast<long long>(count) * blocks * dense_k / 8;
  launch_kernel(
      {.blocks = dim3(grid_of(eights)), .threads = repack_threads, .stream = stream, .overlaps = true},
      gather_tokens, from.data, blocks, rows, count, out);
  return {};
}

}  // namespace nibble
