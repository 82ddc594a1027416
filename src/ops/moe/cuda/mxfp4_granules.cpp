#include "ops/moe/cuda/mxfp4_granules.h"

#include "ops/moe/cuda/granule_packing.h"

namespace nibble {

void pack_granules(const Mxfp4Checkpoint& matrix, int exponent_shift, std::span<std::uint8_t> out) {
  const Mxfp4GranuleShape shape{static_cast<int>(matrix.rows), static_cast<int>(matrix.cols)};
  pack_code_rows<Mxfp4GranuleLayout>({matrix.blocks, matrix.scales}, shape,
                                     {.exponent_shift = exponent_shift}, out);
}

float granule_value(const Mxfp4Granules& matrices, int expert, int row, int col) {
  return packed_value(matrices.data + static_cast<std::size_t>(expert) * matrices.shape.bytes(),
                      matrices.shape, row, col);
}

}  // namespace nibble
