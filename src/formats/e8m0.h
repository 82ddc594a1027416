// E8M0, the scale of the MX formats: eight exponent bits and nothing else. Byte b is 2^(b - 127): 0 is
// 2^-127 (a float32 subnormal), 254 is 2^127, 255 is NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tensor/dtype.h"

namespace nibble {

struct E8m0 {
  static constexpr std::uint8_t nan_bits = 255;

  std::uint8_t bits = 0;

  constexpr bool is_nan() const { return bits == nan_bits; }

  constexpr float to_float() const {
    if (bits == nan_bits) return std::numeric_limits<float>::quiet_NaN();
    if (bits == 0) return std::bit_cast<float>(0x00400000u);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
  }

  // The scale 2^exponent, or the nearest there is.
  static constexpr E8m0 from_exponent(int exponent) {
    const int biased = exponent + 127;
    return {static_cast<std::uint8_t>(biased < 0 ? 0 : biased > 254 ? 254 : biased)};
  }

  // Rounds to the nearer power of two, up when it is a tie (1.5 * 2^e); values past 2^127 saturate there,
  // zero and what lies below 2^-127 become 2^-127. There is no sign: a negative value, a NaN or an
  // infinity becomes NaN.
  static constexpr E8m0 from_float(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if (wide == 0x80000000u) return {0};
    if (wide >= 0x7f800000u) return {nan_bits};
    if (wide < 0x00800000u) return {static_cast<std::uint8_t>(wide >= 0x00600000u ? 1 : 0)};
    const std::uint32_t rounded = (wide + 0x00400000u) >> 23;
    return {static_cast<std::uint8_t>(rounded > 254 ? 254 : rounded)};
  }

  friend constexpr bool operator==(E8m0 a, E8m0 b) = default;
};

template <>
struct DTypeOf<E8m0> {
  static constexpr DType value = DType::f8_e8m0;
};

}  // namespace nibble
