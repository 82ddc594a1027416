#include "ops/moe/cuda/fp4_repack.cuh"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

__global__ void __launch_bounds__(repack_threads)
    mxfp4_repack(const __grid_constant__ Fp4Repack<Mxfp4GranuleLayout> repack, std::uint32_t* largest_scale) {
  std::uint32_t largest = 0;
  repack_blocks(repack, [&](std::uint8_t scale) {
    if (scale != E8m0::nan_bits) largest = max(largest, static_cast<std::uint32_t>(scale));
  });
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) atomicMax(largest_scale, largest);
}

}  // namespace

Status repack_mxfp4_cuda(const std::uint8_t* blocks, const std::uint8_t* scales, int experts,
                         Mxfp4GranuleShape shape, int exponent_shift, std::uint8_t* out,
                         std::uint32_t* largest_scale, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_granule_shape(shape, "MXFP4"));
  const Fp4Repack<Mxfp4GranuleLayout> repack{.codes = blocks,
                                             .scales = scales,
                                             .experts = experts,
                                             .shape = shape,
                                             .halves = false,
                                             .packing = {exponent_shift},
                                             .out = out};
  launch_kernel(repack_launch(repack, stream), mxfp4_repack, repack, largest_scale);
  return {};
}

}  // namespace nibble
