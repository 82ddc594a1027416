// FP8 block, the weights of DeepSeek's and Qwen's FP8 checkpoints: E4M3 codes in tiles of 128 x 128 that
// share one float32 scale; tiles at the right and lower edge hold what is left of the matrix. A value is its
// code times the scale.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bf16.h"
#include "formats/e4m3.h"

namespace nibble {

inline constexpr int fp8_tile = 128;  // rows and columns

constexpr std::int64_t fp8_tiles(std::int64_t extent) { return (extent + fp8_tile - 1) / fp8_tile; }

// amax / 448, but at least 2^-126, which no hardware takes for zero; 1 for a tile of zeros; NaN where amax is
// infinite, which stands for a tile with a NaN or an infinity.
float fp8_tile_scale(float amax);

// Encodes a band of a matrix, the rows of one row of tiles. A code is e4m3(x / scale) with an exact division.
// A tile with a NaN or an infinity gets the scale NaN and zero codes, so that all of it reads back as NaN.
struct Fp8Band {
  std::int64_t rows = 0;  // 1 .. 128
  std::int64_t cols = 0;
};
void fp8_block_encode(const Fp8Band& band,
                      const Bf16* values,   // [rows, cols]
                      std::uint8_t* codes,  // E4M3 [rows, cols]
                      float* scales);       // [fp8_tiles(cols)]
void fp8_block_encode(const Fp8Band& band, const float* values, std::uint8_t* codes, float* scales);

// One rounding to float32 a value.
void fp8_block_decode(const Fp8Band& band, const std::uint8_t* codes, const float* scales, float* values);

}  // namespace nibble
