// exp, log, sin and cos whose bits come from IEEE additions, multiplications and divisions alone: libm picks
// its code by the CPU it finds, and may differ in the last bit from one machine to the next.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble {

// e^x within 2 units in the last place over the whole range; below -87.3 the result is 0 (it would be
// subnormal), above 88.7 infinity; NaN stays NaN.
constexpr float fixed_exp(float x) {
  if (!(x == x)) return x;
  if (x < -87.33654f) return 0.0f;
  if (x > 88.72283f) return std::bit_cast<float>(0x7f800000u);
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to an integer.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n reaches 128, one more than a single exponent field can hold.
  const std::int32_t exponent = static_cast<std::int32_t>(n);
  const std::int32_t half = exponent / 2;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return value * first * second;
}

// The same bits without a branch, for loops that compilers turn into lanes; NaN stays a NaN, not the same
// one.
constexpr float fixed_exp_branchless(float x) {
  const float low = x < -87.33654f ? -87.33654f : x;
  const float inside = x > 88.72283f ? 88.72283f : low;
  const float shifted = inside * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = p * (r * r) + r + 1.0f;
  // The integer that `shifted` holds in its lowest bits.
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(12582912.0f);
  const std::int32_t half = exponent / 2;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  const float result = value * first * second;
  const float bounded = x < -87.33654f ? 0.0f : result;
  return x > 88.72283f ? std::bit_cast<float>(0x7f800000u) : bounded;
}

// The same bits for x <= 0 in fewer steps: 2^n is one factor, as n is not below -126. NaN gives anything.
constexpr float fixed_exp_of_negative(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = p * (r * r) + r + 1.0f;
  // The lowest bits of `shifted` hold n; those above leave at the top.
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u);
  return x < -87.33654f ? 0.0f : value * power;
}

// ln x for finite x > 0, within 1e-15 of the exact value relative to 1.
constexpr double fixed_log(double x) {
  std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
  double mantissa = std::bit_cast<double>(bits);  // [1, 2)
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    ++exponent;
  }
  // ln m = 2 atanh(z) with z = (m - 1) / (m + 1), |z| <= 0.1716: twelve odd terms reach double precision.
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = z * z;
  double series = 0.0;
  for (int power = 23; power >= 1; power -= 2) series = series * square + 1.0 / power;
  return exponent * 0.6931471805599453 + 2.0 * z * series;
}

// e^x for |x| <= 700, within 1e-14 of the exact value relative to it.
constexpr double fixed_exp_double(double x) {
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
  const double n = shifted - 6755399441055744.0;
  // ln 2 in two parts, n times the first being exact.
  const double r = (x - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;
  double series = 1.0;
  for (int power = 16; power >= 1; --power) series = series * r / power + 1.0;
  return series * std::bit_cast<double>((static_cast<std::int64_t>(n) + 1023) << 52);
}

struct SinCos {
  double sin = 0;
  double cos = 1;
};

// Within 1e-15 of the exact values for |x| <= 2^26.
constexpr SinCos fixed_sin_cos(double x) {
  const double shifted = x * 0.6366197723675814 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;  // quarter turns
  // pi / 2 in three parts; the first two have 27 bits, so that n times either is exact.
  const double r = ((x - n * 0x1.921fb54p+0) - n * 0x1.10b46p-30) - n * 0x1.1a62633145c07p-54;
  const double square = r * r;
  double sin = 0, cos = 0;
  for (int power = 17; power >= 1; power -= 2) sin = 1.0 - square / ((power + 1) * (power + 2)) * sin;
  for (int power = 16; power >= 0; power -= 2) cos = 1.0 - square / ((power + 1) * (power + 2)) * cos;
  sin *= r;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: return {sin, cos};
    case 1: return {cos, -sin};
    case 2: return {-sin, -cos};
    default: return {-cos, sin};
  }
}

}  // namespace nibble
