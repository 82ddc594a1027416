#include "ops/moe/cuda/granule_repack.cuh"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

__global__ void __launch_bounds__(repack_threads)
    mxfp4_repack(const __grid_constant__ GranuleRepack<Mxfp4GranuleLayout> repack, Mxfp4ScaleRange* range) {
  std::uint32_t largest = 0, below_nan = 0;
  repack_blocks(repack, [&](std::uint8_t scale) {
    if (scale == E8m0::nan_bits) return;
    largest = max(largest, static_cast<std::uint32_t>(scale));
    below_nan = max(below_nan, 255u - scale);
  });
  raise_maxima(&range->largest, largest, &range->below_nan, below_nan);
}

}  // namespace

Status repack_mxfp4_cuda(const Mxfp4Repack& repack, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_granule_shape(repack.shape, "MXFP4"));
  const GranuleRepack<Mxfp4GranuleLayout> args{.codes = repack.blocks,
                                               .scales = repack.scales,
                                               .experts = repack.experts,
                                               .shape = repack.shape,
                                               .halves = repack.halves,
                                               .packing = {repack.exponent_shift},
                                               .out = repack.out};
  launch_kernel(repack_launch(args, stream), mxfp4_repack, args, repack.range);
  return {};
}

}  // namespace nibble
