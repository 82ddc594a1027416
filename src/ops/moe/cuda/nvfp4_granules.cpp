#include "ops/moe/cuda/nvfp4_granules.h"

#include "ops/moe/cuda/granule_packing.h"

namespace nibble {

void pack_nvfp4_granules(const std::uint8_t* codes, const std::uint8_t* scales,
                         const Nvfp4GranuleShape& shape, std::span<std::uint8_t> out) {
  pack_code_rows<Nvfp4GranuleLayout>({codes, scales}, shape, {}, out);
}

float granule_value(const Nvfp4Granules& matrices, int expert, int row, int col) {
  return 128.0f * packed_value(matrices.data + static_cast<std::size_t>(expert) * matrices.shape.bytes(),
                               matrices.shape, row, col);
}

}  // namespace nibble
