// Q8: blocks of 32 consecutive values along K, each an 8-bit integer code, sharing one E8M0 scale. A value is
// its code times the scale; 33 bytes a block.
//
// The scale is a power of two, so every value is exact in bfloat16 (7 bits and a sign) and a block's scale
// can be applied before or after its products are summed without changing a bit. What that costs: a code's
// step is up to twice the smallest possible one, so the rounding error is 1 to 2 times that of a block format
// with a fractional scale. Weights that are integers times a power of two, at most 127 of them, are kept
// exactly.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bf16.h"
#include "formats/e8m0.h"

namespace nibble {

inline constexpr int q8_block = 32;  // values, and bytes of codes
inline constexpr int q8_max_code = 127;

// A matrix that somebody else owns, row-major.
struct Q8Matrix {
  const std::int8_t* codes = nullptr;    // [rows, cols], each in [-127, 127]
  const std::uint8_t* scales = nullptr;  // E8M0 [rows, cols / 32]
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of 32
};

// Encodes one block and returns its scale: the smallest power of two at which no code passes 127; codes round
// to nearest, ties to even. A block of zeros has the scale 1; one with a NaN or an infinity gets scale byte
// 255 and reads back as NaN.
E8m0 q8_encode_block(const Bf16* values,   // [32]
                     std::int8_t* codes);  // [32]

// Encodes consecutive blocks: whole rows, or any part of a matrix.
void q8_encode(std::span<const Bf16> values,  // [blocks * 32]
               std::int8_t* codes,            // [blocks * 32]
               std::uint8_t* scales);         // [blocks]

// Decodes one row.
void q8_decode_row(const Q8Matrix& matrix, std::int64_t row,
                   std::span<float> values);  // [cols]

}  // namespace nibble
