// Granules that came from elsewhere than the packing in this process: taken up only with a stamp that says
// what they are (formats/layout_stamp.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/layout_stamp.h"
#include "ops/moe/cuda/mxfp4_granules.h"

namespace nibble {

inline constexpr std::string_view mxfp4_granules_tag = Mxfp4GranuleLayout::tag;

// The stamp of experts [experts, rows, cols] in granules.
inline LayoutStamp stamp_granules(const Shape& shape, std::span<const std::uint8_t> bytes) {
  return {std::string(mxfp4_granules_tag), shape, content_hash(bytes)};
}

// Experts in granules from their bytes; refused unless the stamp says so, of this shape and these bytes.
Result<Mxfp4Granules> take_granules(const LayoutStamp& stamp, const Shape& shape,
                                    std::span<const std::uint8_t> bytes, int exponent_shift);

}  // namespace nibble
