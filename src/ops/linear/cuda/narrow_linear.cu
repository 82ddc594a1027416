// linear for a matrix of few rows and up to eight tokens, whose weights are too few for a launch of its own
// to be worth its time: 256 KB for the gates of Qwen3.6-35B-A3B's delta rule. It runs beside a wide product
// of the same activations.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_strands.cuh"
#include "ops/linear/cuda/narrow_linear_cuda.h"

namespace nibble {
namespace {

using namespace strands;

__global__ void __launch_bounds__(threads) narrow_linear(const __grid_constant__ NarrowLinearCudaArgs args) {
  __shared__ float found[dense_k_chunks][4][32];
  const Strands<DenseTiles> of{args.weight};
  const int strand = static_cast<int>(blockIdx.x);
  ptx::grid_launch_dependents();
  if (!args.rows_are_there) ptx::grid_dependency_wait();
  const Strands<DenseTiles>::Strand strands_of_block[1] = {of.out_strand(strand)};
  find(of, strands_of_block, args.x.data, found);
  __syncthreads();  // all parts' sums are there
  const int sum = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (sum < 4) {
    const float total = total_of(of, of.out_factors(strand, sum), found, sum);
    const int row = lane % 4 * 2 + sum % 2, column = of.out_row(strand, lane / 4, sum);
    if (row < args.x.tokens && column < args.weight.shape.rows) args.y[row * args.y_stride + column] = total;
  }
  // It ends behind the launch ahead, whose results who comes next takes for granted.
  ptx::grid_dependency_wait();
}

}  // namespace

bool narrow_linear_takes(const DenseShape& weight, int tokens) {
  return tokens <= most_rows && weight.tiles() <= narrow_linear_most_tiles;
}

Status narrow_linear_cuda(const NarrowLinearCudaArgs& args, cudaStream_t stream) {
  const DenseShape& shape = args.weight.shape;
  if (!narrow_linear_takes(shape, args.x.tokens)) {
    return invalid_argument("a narrow product takes up to " + std::to_string(most_rows) + " rows and " +
                            std::to_string(narrow_linear_most_tiles * dense_tile_rows) + " outputs, not " +
                            std::to_string(args.x.tokens) + " and " + std::to_string(shape.rows));
  }
  if (args.y_stride < shape.rows) {
    return invalid_argument("a product of " + std::to_string(shape.rows) +
                            " outputs needs a stride of as many, not " + std::to_string(args.y_stride));
  }
  if (args.x.tokens == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>(Strands<DenseTiles>::strands(args.weight))),
                 .threads = threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.x.tokens)},
                narrow_linear, args);
  return {};
}

}  // namespace nibble
