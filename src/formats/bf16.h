// bfloat16: 1 sign, 8 exponent, 7 mantissa bits; the upper half of a float32, with its range.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace nibble {

struct Bf16 {
  std::uint16_t bits = 0;

  constexpr float to_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

  // Rounds to nearest, ties to even; past the largest finite value comes infinity. A NaN stays a NaN: it
  // keeps its sign and the payload bits that fit, and becomes quiet.
  static constexpr Bf16 from_float(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(wide >> 16 | 0x0040u)};
    return {static_cast<std::uint16_t>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16)};
  }

  friend constexpr bool operator==(Bf16 a, Bf16 b) = default;  // of the bits: -0 and 0 differ
};

template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::bf16;
};

}  // namespace nibble
