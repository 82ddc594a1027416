// IEEE half precision: 1 sign, 5 exponent (bias 15), 10 mantissa bits; largest finite value 65504.
#pragma once

#include <bit>
#include <cstdint>

#include "formats/minifloat.h"
#include "tensor/dtype.h"

namespace nibble {

struct Fp16 {
  std::uint16_t bits = 0;

  constexpr float to_float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t code = bits & 0x7fffu;
    if (code >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (code & 0x3ffu) << 13);
    return std::bit_cast<float>(sign |
                                std::bit_cast<std::uint32_t>(minifloat::decode_magnitude(code, 10, 15)));
  }

  // Rounds to nearest, ties to even; from 65520 on comes infinity. A NaN stays a NaN: it keeps its sign and
  // the payload bits that fit, and becomes quiet.
  static constexpr Fp16 from_float(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 16 & 0x8000u;
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    std::uint32_t code = 0;
    if (magnitude > 0x7f800000u) {
      code = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    } else if (magnitude == 0x7f800000u) {
      code = 0x7c00u;
    } else {
      code = minifloat::encode_magnitude(value, 10, 15);
      if (code > 0x7c00u) code = 0x7c00u;
    }
    return {static_cast<std::uint16_t>(sign | code)};
  }

  friend constexpr bool operator==(Fp16 a, Fp16 b) = default;  // of the bits: -0 and 0 differ
};

template <>
struct DTypeOf<Fp16> {
  static constexpr DType value = DType::f16;
};

}  // namespace nibble
