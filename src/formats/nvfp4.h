// NVFP4: blocks of 16 consecutive values along K, each an E2M1 code, sharing one E4M3 scale, and one float32
// scale G above them all; 9 bytes a block.
//
//   encode  sf = e4m3((G * amax) / 6), code = e2m1(x * (G / sf))
//   decode  code * (sf / G)
//
// each operation rounded to float32 once, with exact divisions: what engines read a checkpoint by, bit for
// bit. G is usually 448 * 6 / amax of a tensor, which lifts its largest block to the largest scale.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace nibble {

inline constexpr int nvfp4_block = 16;       // values
inline constexpr int nvfp4_block_bytes = 8;  // of codes

// 448 * 6 / amax, or the largest float where that is infinite; 1 for a tensor of zeros. amax is finite.
float nvfp4_global_scale(float amax);

// Whether G can be divided by: finite, normal and above zero.
Status check_nvfp4_global_scale(float global_scale);

// Encodes one block and returns its scale. A block whose scale rounds to zero (all zeros, or all below
// 2^-10 * 6 / G) reads back as zeros that keep their signs. Scales saturate at 448, values at 6 times theirs.
// A block with a NaN or an infinity gets the scale NaN (0x7f) and zero codes, so that all of it reads back as
// NaN.
E4m3 nvfp4_encode_block(const float* values,  // [16]
                        float global_scale,
                        std::uint8_t* codes);  // [8]

void nvfp4_decode_block(const std::uint8_t* codes,  // [8]
                        E4m3 scale, float global_scale,
                        float* values);  // [16]

// The same for consecutive blocks, in lanes.
void nvfp4_encode(std::span<const Bf16> values,  // [blocks * 16]
                  float global_scale,
                  std::uint8_t* codes,    // [blocks * 8]
                  std::uint8_t* scales);  // E4M3 [blocks]
void nvfp4_encode(std::span<const float> values, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales);
void nvfp4_decode(const std::uint8_t* codes, const std::uint8_t* scales, float global_scale,
                  std::span<float> values);

}  // namespace nibble
