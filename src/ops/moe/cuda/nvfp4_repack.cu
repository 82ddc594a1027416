#include "ops/moe/cuda/granule_repack.cuh"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

__global__ void __launch_bounds__(repack_threads)
    nvfp4_repack(const __grid_constant__ GranuleRepack<Nvfp4GranuleLayout> repack) {
  repack_blocks(repack, [](std::uint8_t) {});
}

}  // namespace

Status repack_nvfp4_cuda(const Nvfp4Repack& repack, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_granule_shape(repack.shape, "NVFP4"));
  const GranuleRepack<Nvfp4GranuleLayout> args{.codes = repack.codes,
                                               .scales = repack.scales,
                                               .experts = repack.experts,
                                               .shape = repack.shape,
                                               .halves = repack.halves,
                                               .packing = {},
                                               .out = repack.out};
  launch_kernel(repack_launch(args, stream), nvfp4_repack, args);
  return {};
}

}  // namespace nibble
