#include "formats/e4m3_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace nibble {
namespace {

constexpr std::uint32_t magnitude_bits = 0x7fffffffu, infinity_bits = 0x7f800000u;
constexpr std::uint32_t fraction_of_448 = 0x600000u;  // 448 is 1.75 * 2^8
constexpr int exponent_of_448 = 8;

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// The E4M3 nearest to a value of at most 448.
inline float nearest_e4m3(float value) {
  // Below 2^-6 quanta are 2^-9: so are those of a float of this magnitude, whose sum is rounded to them.
  constexpr float smallest_normal = 0x1p-6f, with_quanta = 0x1.8p14f;
  const float subnormal = std::copysign((value + with_quanta) - with_quanta, value);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const float normal = std::bit_cast<float>((bits + 0x7ffffu + (bits >> 20 & 1u)) & 0xfff00000u);
  return std::fabs(value) < smallest_normal ? subnormal : normal;
}

}  // namespace

float e4m3_row_factor(std::span<const float> row) {
  std::uint32_t largest = 0;  // magnitudes have the order of their bits, infinity and NaN behind the numbers
  for (const float value : row)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & magnitude_bits);
  if (largest == 0 || largest >= infinity_bits) return 0.0f;
  const int above = (largest & 0x7fffffu) > fraction_of_448 ? 1 : 0;
  const int exponent = static_cast<int>(largest >> 23) - 127 - exponent_of_448 + above;
  return power_of_two(-std::max(exponent, least_e4m3_row_exponent));
}

void round_to_e4m3(std::span<const float> values, float row_factor, float* rounded) {
  if (row_factor == 0.0f) {
    std::copy(values.begin(), values.end(), rounded);
    return;
  }
  const float back = 1.0f / row_factor;
  for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = nearest_e4m3(values[i] * row_factor) * back;
}

}  // namespace nibble
