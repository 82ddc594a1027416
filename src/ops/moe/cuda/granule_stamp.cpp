#include "ops/moe/cuda/granule_stamp.h"

#include <limits>

namespace nibble {

Result<Mxfp4Granules> take_granules(const LayoutStamp& stamp, const Shape& shape,
                                    std::span<const std::uint8_t> bytes, int exponent_shift) {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (shape.rank() != 3 || shape[1] % granule_rows != 0 || shape[2] % mxfp4_block != 0 || shape[0] > most ||
      shape[1] > most || shape[2] > most) {
    return invalid_argument("the layout " + std::string(mxfp4_granules_tag) +
                            " holds [experts, rows in 16s, columns in 32s], not " + shape.to_string());
  }
  NIBBLE_RETURN_IF_ERROR(check_stamp(stamp, mxfp4_granules_tag, shape, bytes, "expert weights"));
  const Mxfp4GranuleShape of_matrix{static_cast<int>(shape[1]), static_cast<int>(shape[2])};
  const std::size_t expected = static_cast<std::size_t>(shape[0]) * of_matrix.bytes();
  if (bytes.size() != expected) {
    return invalid_argument("experts " + shape.to_string() + " in the layout " +
                            std::string(mxfp4_granules_tag) + " take " + std::to_string(expected) +
                            " bytes, not " + std::to_string(bytes.size()));
  }
  return Mxfp4Granules{.data = bytes.data(),
                       .experts = static_cast<int>(shape[0]),
                       .shape = of_matrix,
                       .exponent_shift = exponent_shift};
}

}  // namespace nibble
