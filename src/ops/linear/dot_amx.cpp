#include "ops/linear/dot_amx.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <cpuid.h>

#include "ops/linear/amx_product.h"
#include "ops/linear/amx_tiles.h"
#include "ops/linear/dot_avx512.h"

namespace nibble {
namespace {

bool takes_tiles(const DotInputs& inputs) {
  return inputs.values == InputValues::bf16 && inputs.rows.cols % dot_step == 0;
}

bool processor_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned tiles = 1u << 24, bf16 = 1u << 22;
  return (d & tiles) != 0 && (d & bf16) != 0;
}

bool system_grants_tiles() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace

bool amx_supported() { return avx512_bf16_supported() && processor_has_tiles() && system_grants_tiles(); }

void amx_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  takes_tiles(inputs) ? amx::prepare(matrix, inputs, begin, end)
                      : avx512_vnni_prepare(matrix, inputs, begin, end);
}

void amx_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                  const TotalsSink& store) {
  takes_tiles(inputs) ? amx::multiply<AmxTiles>(matrix, begin, end, inputs, store)
                      : avx512_vnni_multiply(matrix, begin, end, inputs, store);
}

}  // namespace nibble
