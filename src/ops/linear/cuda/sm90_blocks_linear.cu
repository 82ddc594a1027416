// Dense products with matrices in blocks (block_linear_cuda.h).
#include <string>

#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/block_products.cuh"

namespace nibble {
namespace {

using namespace block_products;

struct StoreRows {
  float* y;
  int stride;
  __device__ __forceinline__ void operator()(int row, int weight_row, float even, float odd) const {
    *reinterpret_cast<float2*>(y + static_cast<std::size_t>(row) * stride + weight_row) =
        make_float2(even, odd);
  }
};

// From so many rows on the kernel for many takes them; up to there the other reads weights from the caches
// again for every eight.
constexpr int many_from = 33;

template <class Codes>
Status multiply(const BlockLinearCudaArgs<Codes>& args, cudaStream_t stream) {
  const BlockShape<Codes>& shape = args.weight.shape;
  if (!shape.legal()) {
    return invalid_argument("a matrix in blocks has rows and columns in sixteens, not " +
                            std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
  }
  if (args.y_stride < shape.rows || args.y_stride % 2 != 0) {
    return invalid_argument("outputs need an even stride of at least " + std::to_string(shape.rows) +
                            ", not " + std::to_string(args.y_stride));
  }
  if (args.x.tokens == 0) return {};
  const Params<Codes> params{
      .weights = args.weight, .x = token_tiles(args.x, shape.blocks()), .groups = {.all = args.x.tokens}};
  const StoreRows store{args.y, args.y_stride};
  const auto groups = [&](int rows) { return (args.x.tokens + rows - 1) / rows; };
  if (args.x.tokens < many_from) {
    launch_blocks<FewRows>(params, store, groups(rows_of<FewRows>), stream);
  } else {
    launch_blocks<ManyRows>(params, store, groups(rows_of<ManyRows>), stream);
  }
  return {};
}

}  // namespace

Status block_linear_cuda(const BlockLinearCudaArgs<Bf16Codes>& args, cudaStream_t stream) {
  return multiply(args, stream);
}
Status block_linear_cuda(const BlockLinearCudaArgs<E4m3Codes>& args, cudaStream_t stream) {
  return multiply(args, stream);
}
Status block_linear_cuda(const BlockLinearCudaArgs<Nvfp4Codes>& args, cudaStream_t stream) {
  return multiply(args, stream);
}

}  // namespace nibble
