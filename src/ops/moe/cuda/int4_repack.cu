#include "ops/moe/cuda/granule_repack.cuh"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

__global__ void __launch_bounds__(repack_threads)
    int4_repack(const __grid_constant__ GranuleRepack<Int4GranuleLayout> repack, Int4ScaleRange* range) {
  std::uint32_t largest = 0, below_infinity = 0;
  repack_blocks(repack, [&](std::uint16_t scale) {
    const std::uint32_t magnitude = scale & 0x7fffu;
    if (magnitude == 0 || magnitude >= int4_infinity) return;
    largest = max(largest, magnitude);
    below_infinity = max(below_infinity, int4_infinity - magnitude);
  });
  raise_maxima(&range->largest, largest, &range->below_infinity, below_infinity);
}

}  // namespace

Status repack_int4_cuda(const Int4Repack& repack, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_granule_shape(repack.shape, "int4"));
  const GranuleRepack<Int4GranuleLayout> args{.codes = repack.codes,
                                              .scales = reinterpret_cast<const std::uint16_t*>(repack.scales),
                                              .experts = repack.experts,
                                              .shape = repack.shape,
                                              .halves = repack.halves,
                                              .packing = {},
                                              .out = repack.out};
  launch_kernel(repack_launch(args, stream), int4_repack, args, repack.range);
  return {};
}

}  // namespace nibble
