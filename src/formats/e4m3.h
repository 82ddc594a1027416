// FP8 E4M3 in its "fn" form: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, one NaN a sign
// (0x7f, 0xff), largest value 448.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "formats/minifloat.h"
#include "tensor/dtype.h"

namespace nibble {

struct E4m3 {
  static constexpr float max = 448.0f;

  std::uint8_t bits = 0;

  constexpr float to_float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    const std::uint32_t code = bits & 0x7fu;
    const float magnitude =
        code == 0x7fu ? std::numeric_limits<float>::quiet_NaN() : minifloat::decode_magnitude(code, 3, 7);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }

  // Rounds to nearest, ties to even, and saturates: everything past 448, infinity too, becomes 448. A NaN
  // stays a NaN and keeps its sign.
  static constexpr E4m3 from_float(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 24 & 0x80u;
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    std::uint32_t code = 0x7fu;  // NaN
    if (magnitude == 0x7f800000u) {
      code = 0x7eu;
    } else if (magnitude < 0x7f800000u) {
      code = minifloat::encode_magnitude(value, 3, 7);
      if (code > 0x7eu) code = 0x7eu;
    }
    return {static_cast<std::uint8_t>(sign | code)};
  }

  friend constexpr bool operator==(E4m3 a, E4m3 b) = default;  // of the bits: -0 and 0 differ
};

template <>
struct DTypeOf<E4m3> {
  static constexpr DType value = DType::f8_e4m3;
};

}  // namespace nibble
