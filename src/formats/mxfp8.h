// MXFP8: blocks of 32 consecutive values along K, each an E4M3 code, sharing one E8M0 scale. A value is its
// code times the scale; 33 bytes a block.
//
// The scale is the smallest power of two that is at least amax / 448, so nothing saturates.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace nibble {

inline constexpr int mxfp8_block = 32;  // values, and bytes of codes

// Encodes one block and returns its scale. A block of zeros has scale byte 0 and keeps the zeros' signs. A
// block with a NaN or an infinity gets scale byte 255 and zero codes, so that all of it reads back as NaN.
E8m0 mxfp8_encode_block(const float* values,   // [32]
                        std::uint8_t* codes);  // E4M3 [32]

// Exact, except that 2^127 times a code past 1.875 is infinite; scale byte 0 (2^-127) gives float32
// subnormals.
void mxfp8_decode_block(const std::uint8_t* codes,  // E4M3 [32]
                        E8m0 scale,
                        float* values);  // [32]

// The same for consecutive blocks, in lanes.
void mxfp8_encode(std::span<const Bf16> values,  // [blocks * 32]
                  std::uint8_t* codes,           // E4M3 [blocks * 32]
                  std::uint8_t* scales);         // E8M0 [blocks]
void mxfp8_encode(std::span<const float> values, std::uint8_t* codes, std::uint8_t* scales);
void mxfp8_decode(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> values);

}  // namespace nibble
