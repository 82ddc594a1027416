#include "ops/moe/cuda/int4_granules.h"

#include <vector>

#include "ops/moe/cuda/granule_packing.h"

namespace nibble {

void pack_int4_granules(const std::uint8_t* codes, const Bf16* scales, const Int4GranuleShape& shape,
                        std::span<std::uint8_t> out) {
  const std::size_t count =
      static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.cols / int4_group);
  std::vector<std::uint16_t> bits;
  for (std::size_t i = 0; i < count; ++i) bits.push_back(scales[i].bits);
  pack_code_rows<Int4GranuleLayout>({codes, bits.data()}, shape, {}, out);
}

float granule_value(const Int4Granules& matrices, int expert, int row, int col) {
  return 8.0f * packed_value(matrices.data + static_cast<std::size_t>(expert) * matrices.shape.bytes(),
                             matrices.shape, row, col);
}

}  // namespace nibble
