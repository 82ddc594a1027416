// What the small IEEE-like formats share: a sign, exponent bits with a bias, mantissa bits, subnormals at
// exponent 0. Each format adds what its largest codes mean (infinity, NaN, or nothing special).
#pragma once

#include <bit>
#include <cstdint>

namespace nibble::minifloat {

// The magnitude a code without its sign bit stands for, exactly; the codes a format reserves are the
// caller's business.
constexpr float decode_magnitude(std::uint32_t code, int mantissa_bits, int bias) {
  const std::uint32_t exponent = code >> mantissa_bits;
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  if (exponent > 0) {
    const std::uint32_t rebiased = exponent + 127u - static_cast<std::uint32_t>(bias);
    return std::bit_cast<float>(rebiased << 23 | mantissa << (23 - mantissa_bits));
  }
  // Subnormal: mantissa * 2^(1 - bias - mantissa_bits), a power of two that float32 holds as a normal.
  const auto quantum = static_cast<std::uint32_t>(128 - bias - mantissa_bits);
  return static_cast<float>(mantissa) * std::bit_cast<float>(quantum << 23);
}

// The code, without a sign, nearest to a magnitude that is neither NaN nor infinite; ties go to the even
// code. It may lie past the format's largest finite code: the caller saturates or overflows.
constexpr std::uint32_t encode_magnitude(float magnitude, int mantissa_bits, int bias) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude) & 0x7fffffffu;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  // float32 subnormals lie below half the smallest subnormal of every format here.
  if (exponent == -127) return 0;
  const std::uint32_t significand = (bits & 0x7fffffu) | 0x800000u;  // magnitude / 2^(exponent - 23)
  const int scale = exponent > 1 - bias ? exponent : 1 - bias;       // subnormals share one quantum
  const int shift = 23 - mantissa_bits + scale - exponent;
  if (shift > 24) return 0;  // below half of the smallest subnormal
  const std::uint32_t below = significand & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  std::uint32_t rounded = significand >> shift;
  if (below > half || (below == half && (rounded & 1u) != 0)) ++rounded;
  // A normal's leading bit and a carry out of the mantissa both land in the exponent field.
  return (static_cast<std::uint32_t>(scale + bias - 1) << mantissa_bits) + rounded;
}

}  // namespace nibble::minifloat
