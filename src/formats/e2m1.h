// FP4 E2M1: bit 3 is the sign, two exponent bits (bias 1), one mantissa bit. The magnitudes are
// 0, 0.5, 1, 1.5, 2, 3, 4, 6; there is neither infinity nor NaN. Two codes share a byte, the one with the
// even index in its low nibble.
#pragma once

#include <bit>
#include <cstdint>

#include "formats/minifloat.h"

namespace nibble {

struct E2m1 {
  static constexpr float max = 6.0f;

  std::uint8_t bits = 0;  // 0..15

  constexpr float to_float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8u) << 28;
    const float magnitude = minifloat::decode_magnitude(bits & 0x7u, 1, 1);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }

  // Rounds to nearest, ties to even (0.25 -> 0, 0.75 -> 1, 2.5 -> 2, 5 -> 4), and saturates: everything
  // past 6, infinity too, becomes 6. A NaN has no code and becomes +6, whatever its sign, as the hardware
  // conversions do; block formats mark it in their scale instead.
  static constexpr E2m1 from_float(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 28 & 0x8u;
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {0x7u};
    if (magnitude == 0x7f800000u) return {static_cast<std::uint8_t>(sign | 0x7u)};
    std::uint32_t code = minifloat::encode_magnitude(value, 1, 1);
    if (code > 0x7u) code = 0x7u;
    return {static_cast<std::uint8_t>(sign | code)};
  }

  friend constexpr bool operator==(E2m1 a, E2m1 b) = default;  // of the bits: -0 and 0 differ
};

}  // namespace nibble
