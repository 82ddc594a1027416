#include "formats/e4m3_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/e4m3.h"

namespace nibble {
namespace {

// Magnitudes have the order of their bits, infinity and NaN behind the numbers.
constexpr std::int32_t magnitude_bits = 0x7fffffff, infinity_bits = 0x7f800000;
constexpr std::int32_t fraction_of_448 = 0x600000;  // 448 is 1.75 * 2^8
constexpr int exponent_of_448 = 8;

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// The E4M3 nearest to a value of at most 448. Neighbours are 2^-3 of the power of two below a value apart,
// and those below 2^-6 as far as there. So are the floats around 1.5 times 2^20 of that power, whose sum with
// the value is rounded to them. Without branches, for compilers to do several at once.
inline float nearest_e4m3(float value) {
  constexpr std::int32_t smallest_normal = (127 - 6) << 23;
  const std::int32_t bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t power = std::max(bits & infinity_bits, smallest_normal);
  const float coarse = std::bit_cast<float>((power + (20 << 23)) | 0x400000);
  const float nearest = (value + coarse) - coarse;
  return std::bit_cast<float>((std::bit_cast<std::int32_t>(nearest) & magnitude_bits) |
                              (bits & ~magnitude_bits));
}

}  // namespace

float e4m3_row_factor(std::span<const float> row) {
  std::int32_t largest = 0;
  for (const float value : row)
    largest = std::max(largest, std::bit_cast<std::int32_t>(value) & magnitude_bits);
  if (largest == 0 || largest >= infinity_bits) return 0.0f;
  const int above = (largest & 0x7fffff) > fraction_of_448 ? 1 : 0;
  const int exponent = (largest >> 23) - 127 - exponent_of_448 + above;
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

float e4m3_row_codes(std::span<const float> row, std::uint8_t* codes) {
  const float found = e4m3_row_factor(row), factor = found == 0.0f ? 1.0f : found;
  bool zeros = true;
  for (std::size_t i = 0; i < row.size(); ++i) {
    codes[i] = std::isnan(row[i]) ? std::uint8_t{0x7f} : E4m3::from_float(row[i] * factor).bits;
    zeros = zeros && row[i] == 0.0f;
  }
  return found == 0.0f && !zeros ? std::numeric_limits<float>::quiet_NaN() : 1.0f / factor;
}

}  // namespace nibble
