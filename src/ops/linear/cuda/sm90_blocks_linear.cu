// Dense products with matrices in blocks (block_linear_cuda.h).
#include <algorithm>
#include <string>
#include <type_traits>

#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/block_products_few.cuh"
#include "ops/linear/cuda/block_products_long.cuh"
#include "ops/linear/cuda/block_products_many.cuh"
#include "ops/linear/cuda/block_products_rounded.cuh"
#include "ops/linear/cuda/block_products_short.cuh"
#include "ops/linear/cuda/block_products_some.cuh"

namespace nibble {
namespace {

using namespace block_products;

struct StoreRows {
  float* y;
  int stride;
  __device__ __forceinline__ static float2 value(float even, float odd) { return make_float2(even, odd); }
  __device__ __forceinline__ void put(int row, int weight_row, float2 both) const {
    *reinterpret_cast<float2*>(y + static_cast<std::size_t>(row) * stride + weight_row) = both;
  }
};

// Rows of a group: the narrowest tile that holds all, or the widest.
int group_rows(int tokens) { return tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128; }

template <class Codes>
Status multiply_rounded_rows(const StoreRows& store, const BlockLinearCudaArgs<Codes>& args,
                             cudaStream_t stream) {
  if constexpr (!std::is_same_v<Codes, E4m3Codes>) {
    return invalid_argument("rows are rounded to FP8 in front of FP8 weights alone");
  } else {
    const int tokens = args.x.tokens, rows = group_rows(tokens);
    round_rows_cuda({.tiles = args.x,
                     .rows = tokens,
                     .cols = args.weight.shape.cols,
                     .order = column_order<Codes>,
                     .to = args.rounding},
                    stream);
    rounded_products::launch_rounded(
        rounded_products::Params<StoreRows>{.map = {},
                                            .weights = args.weight,
                                            .x = {args.rounding.codes, args.rounding.scales},
                                            .groups = {.all = tokens},
                                            .choices = 1,
                                            .store = store},
        rows, (tokens + rows - 1) / rows, stream);
    return {};
  }
}

template <class Codes>
BlockLinearPath fastest_path(const BlockShape<Codes>& shape, int tokens) {
  const BlockProduct product{shape.granules(), tokens, processors_of_device()};
  return std::is_same_v<Codes, E4m3Codes> ? fastest_fp8_path(product) : fastest_nvfp4_path(product);
}
// The path taken: K may be too long for few.
template <class Codes>
BlockLinearPath path_of(const BlockShape<Codes>& shape, int tokens, BlockLinearPath asked) {
  const BlockLinearPath path = asked == BlockLinearPath::fastest ? fastest_path(shape, tokens) : asked;
  const bool is_too_long = shape.scale_blocks() > few_most_scale_blocks;
  return path == BlockLinearPath::few && is_too_long ? BlockLinearPath::many : path;
}

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
  const StoreRows store{args.y, args.y_stride};
  if (args.rounding.codes != nullptr) return multiply_rounded_rows(store, args, stream);
  const int tokens = args.x.tokens;
  const Inputs x = token_tiles(args.x, shape.blocks());
  const BlockLinearPath path = path_of(shape, tokens, args.path);
  if (path == BlockLinearPath::few) {
    const FewParams<Codes, StoreRows> params{args.weight, x, tokens, store, args.lets_beside};
    if (short_takes(shape, tokens)) {
      launch_short(params, stream);
    } else if (tokens <= long_rows) {
      launch_long(params, stream);
    } else {
      launch_few(params, stream);
    }
    return {};
  }
  if (args.lets_beside)
    return invalid_argument("only the path for few rows lets another product run beside it");
  if (path == BlockLinearPath::some) {
    if constexpr (!std::is_same_v<Codes, E4m3Codes>) {
      return invalid_argument("the path for some rows is of FP8 weights alone");
    } else {
      launch_some(SomeParams<StoreRows>{.weights = args.weight, .x = args.x, .store = store, .cluster = 1},
                  stream);
      return {};
    }
  }
  const int rows = group_rows(tokens);
  launch_many<column_order<Codes>>(
      ManyParams<Codes, StoreRows>{
          .map = {}, .weights = args.weight, .x = x, .groups = {.all = tokens}, .choices = 1, .store = store},
      rows, (tokens + rows - 1) / rows, stream);
  return {};
}

}  // namespace

template <class Codes>
bool block_linear_takes_few(const BlockShape<Codes>& shape, int tokens) {
  return path_of(shape, tokens, BlockLinearPath::fastest) == BlockLinearPath::few;
}
template bool block_linear_takes_few(const BlockShape<E4m3Codes>&, int);
template bool block_linear_takes_few(const BlockShape<Nvfp4Codes>&, int);

Status block_linear_cuda(const BlockLinearCudaArgs<E4m3Codes>& args, cudaStream_t stream) {
  return multiply(args, stream);
}
Status block_linear_cuda(const BlockLinearCudaArgs<Nvfp4Codes>& args, cudaStream_t stream) {
  return multiply(args, stream);
}

}  // namespace nibble
