// A row of numbers rounded to E4M3 with one scale for all of it, 2^e:
//
//   e is the smallest from -100 on with which no magnitude is above 448 * 2^e.
//   A value becomes the E4M3 nearest to it / 2^e, ties to even, subnormals included, times 2^e.
//   A row of zeros stays as it is, and so does one with an infinity or a NaN.
//
// A power of two moves no significant bit: rounded values are bfloat16 again, with four such bits. (Only the
// last eight bfloat16 below 2^128 become infinite.) So products that take codes and scales and products that
// take the rounded row multiply the same numbers.
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

inline constexpr int least_e4m3_row_exponent = -100;

// What a row is multiplied by before it is rounded, 2^-e; 0: it stays as it is.
float e4m3_row_factor(std::span<const float> row);
// Some of the row's values.
void round_to_e4m3(std::span<const float> values, float row_factor, float* rounded);
// The row's codes, and its scale 2^e: 1 for a row of zeros. With an infinity or a NaN among them, the scale
// is NaN and codes are of the values themselves, 448 for an infinity and 0x7f for a NaN.
float e4m3_row_codes(std::span<const float> row, std::uint8_t* codes);

}  // namespace nibble
