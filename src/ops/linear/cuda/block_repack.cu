// The layout of matrices in blocks (block_matrices.h) from a checkpoint's rows. Bytes: each read and written
// once, 16 a thread.
#include <algorithm>
#include <string>
#include <type_traits>

#include "formats/bf16.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/block_linear_cuda.h"

namespace nibble {
namespace {

constexpr int repack_threads = 256;

// Whether one of 16 codes of E4M3 is: all bits but the sign are set.
__device__ __forceinline__ bool any_is_nan(const uint4& codes) {
  const auto in = [](std::uint32_t four) {
    return (((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
  };
  return in(codes.x) || in(codes.y) || in(codes.z) || in(codes.w);
}

// A lane's 16 bytes of a row, zeros past the end of K: those that begin at a column.
template <class Codes>
__device__ __forceinline__ uint4 quarter_of_row(const BlockRepack<Codes>& repack, std::size_t row, int col) {
  return col < repack.shape.cols ? *reinterpret_cast<const uint4*>(repack.codes + (row + col) * Codes::bytes)
                                 : make_uint4(0, 0, 0, 0);
}
// Two columns and the two that are eight further on, of each of four steps; codes of a byte.
template <class Codes>
__device__ __forceinline__ uint4 steps_of_row(const BlockRepack<Codes>& repack, std::size_t row, int col) {
  std::uint32_t words[4];
  for (int step = 0; step < 4; ++step) {
    const int at = col + step * 16;
    const auto two = [&](int of) {
      return std::uint32_t{*reinterpret_cast<const std::uint16_t*>(repack.codes + row + of)};
    };
    words[step] = at < repack.shape.cols ? two(at) | two(at + 8) << 16 : 0;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class Codes>
__global__ void __launch_bounds__(repack_threads)
    block_repack(const __grid_constant__ BlockRepack<Codes> repack) {
  using Shape = BlockShape<Codes>;
  const Shape shape = repack.shape;
  constexpr int of_row = Shape::pieces / 2;    // pieces of a row's elements
  constexpr int elements = 16 / Codes::bytes;  // of a lane in a piece
  const std::size_t all = repack.experts * shape.bytes() / 16;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * repack_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * repack_threads + threadIdx.x; i < all;
       i += step) {
    const int lane = static_cast<int>(i % 32), piece = static_cast<int>(i / 32 % Shape::pieces);
    const std::size_t block_of_all = i / 32 / Shape::pieces, granule_of_all = block_of_all / shape.blocks();
    const int block = static_cast<int>(block_of_all % shape.blocks());
    const std::size_t expert = granule_of_all / shape.granules();
    const int row = static_cast<int>(granule_of_all % shape.granules()) * block_granule_rows + lane / 4 * 2 +
                    piece / of_row;
    const int from_row = repack.halves ? row / 2 + row % 2 * (shape.rows / 2) : row;
    const std::size_t row_begin = (expert * shape.rows + from_row) * shape.cols;
    const uint4 codes =
        repack.order == ColumnOrder::quarters
            ? quarter_of_row<Codes>(repack, row_begin,
                                    block * block_k + lane % 4 * 16 + piece % of_row * elements)
            : steps_of_row<Codes>(repack, row_begin, block * block_k + lane % 4 * 2);
    if constexpr (std::is_same_v<Codes, E4m3Codes>) {
      if (any_is_nan(codes)) {
        BlockFactors& factors =
            repack.factors[granule_of_all * shape.scale_blocks() + block * block_k / block_scale_columns];
        (piece / of_row == 0 ? factors.even : factors.odd) = __uint_as_float(0x7fc00000u);
      }
      // The words of a row are every other word of both pieces.
      auto* const to =
          reinterpret_cast<std::uint32_t*>(repack.out + block_of_all * Codes::block_bytes) + lane * 4 + piece;
      constexpr int further = block_piece_bytes / 4;
      to[0] = paired_e4m3(codes.x);
      to[2] = paired_e4m3(codes.y);
      to[further] = paired_e4m3(codes.z);
      to[further + 2] = paired_e4m3(codes.w);
    } else {
      reinterpret_cast<uint4*>(repack.out)[i] = codes;
    }
  }
}

__device__ __forceinline__ float scale_at(const BlockScales& scales, std::size_t at) {
  return scales.narrow ? static_cast<const Bf16*>(scales.scales)[at].to_float()
                       : static_cast<const float*>(scales.scales)[at];
}

// Those of rows; their factors are one.
__global__ void __launch_bounds__(repack_threads)
    block_row_scales(const __grid_constant__ BlockScales scales) {
  const int rows = scales.shape.rows;
  const std::size_t all = static_cast<std::size_t>(scales.experts) * rows,
                    factors = scales.experts * scales.shape.factors();
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * repack_threads,
                    first = static_cast<std::size_t>(blockIdx.x) * repack_threads + threadIdx.x;
  for (std::size_t i = first; i < factors; i += step) scales.factors[i] = {1.0f, 1.0f};
  for (std::size_t i = first; i < all; i += step) {
    const int row = static_cast<int>(i % rows);
    const int from_row = scales.halves ? row / 2 + row % 2 * (rows / 2) : row;
    scales.row_scales[i] = scale_at(scales, i - row + scales.first_row + from_row);
  }
}

__global__ void __launch_bounds__(repack_threads) block_factors(const __grid_constant__ BlockScales scales) {
  const BlockShape<E4m3Codes> shape = scales.shape;
  const int blocks = shape.scale_blocks(), parts = scales.halves ? 2 : 1;
  const int rows = scales.first_row + shape.rows / parts;
  const std::size_t tiles =
      static_cast<std::size_t>((rows + block_scale_columns - 1) / block_scale_columns) * blocks;
  const std::size_t all = scales.experts * shape.factors();
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * repack_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * repack_threads + threadIdx.x; i < all;
       i += step) {
    const int block = static_cast<int>(i % blocks), granule = static_cast<int>(i / blocks % shape.granules());
    const std::size_t expert = i / shape.factors();
    const int row = scales.first_row + granule * block_granule_rows / parts;
    const auto scale = [&](int part) {
      const std::size_t at = (expert * parts + part) * tiles + row / block_scale_columns * blocks + block;
      return scale_at(scales, at);
    };
    scales.factors[i] = {scale(0), scale(parts - 1)};
  }
}

Launch launch_of(std::size_t all, cudaStream_t stream) {
  const std::size_t blocks = (all + repack_threads - 1) / repack_threads;
  return {.blocks = dim3(static_cast<unsigned>(std::clamp<std::size_t>(blocks, 1, 65536))),
          .threads = repack_threads,
          .stream = stream};
}

template <class Codes>
Status repack(const BlockRepack<Codes>& repack, cudaStream_t stream) {
  if (!repack.shape.legal()) {
    return invalid_argument("a matrix in blocks has rows and columns in sixteens, not " +
                            std::to_string(repack.shape.rows) + " x " + std::to_string(repack.shape.cols));
  }
  if (Codes::bytes != 1 && repack.order != ColumnOrder::quarters)
    return invalid_argument("only a matrix of codes of a byte lies in the order of steps");
  launch_kernel(launch_of(repack.experts * repack.shape.bytes() / 16, stream), block_repack<Codes>, repack);
  return {};
}

}  // namespace

Status repack_blocks_cuda(const BlockRepack<Bf16Codes>& args, cudaStream_t stream) {
  return repack(args, stream);
}
Status repack_blocks_cuda(const BlockRepack<E4m3Codes>& args, cudaStream_t stream) {
  return repack(args, stream);
}

void place_block_scales_cuda(const BlockScales& scales, cudaStream_t stream) {
  const Launch launch = launch_of(scales.experts * scales.shape.factors(), stream);
  launch_kernel(launch, scales.row_scales != nullptr ? block_row_scales : block_factors, scales);
}

}  // namespace nibble
