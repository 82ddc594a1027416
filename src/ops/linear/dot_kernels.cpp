#include "base/check.h"
#include "ops/linear/dot_tile_avx2.h"
#include "ops/linear/dot_tile_avx512.h"
#include "ops/linear/dot_tile_scalar.h"

namespace nibble {
namespace {

constexpr DotKernels kernels[] = {
    {"avx512", avx512_supported, avx512_dot_bf16, avx512_dot_mxfp4},
    {"avx2", avx2_supported, avx2_dot_bf16, avx2_dot_mxfp4},
    {"scalar", scalar_supported, scalar_dot_bf16, scalar_dot_mxfp4},
};

}  // namespace

std::span<const DotKernels> dot_kernels() { return kernels; }

const DotKernels& best_dot_kernels() {
  for (const DotKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

}  // namespace nibble
