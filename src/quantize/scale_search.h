// Encodings whose scales are searched for: a block's scale is the candidate with the smallest squared error
// over the block; of equal ones the scale that the plain encoding takes, else the first tried. Blocks that
// are not finite are encoded as the plain encoding does.
//
//   mxfp4      the powers of two above, at and below the convention's
//   nvfp4      the E4M3 scales from four below the plain one to six above: amax then lands on 9 .. 3 or so,
//   instead
//              of 6
//   mxfp8      the plain power of two and the one below
//   fp8_block  the plain scale times 14 .. 28 sixteenths
#pragma once

#include <cstdint>
#include <span>

#include "formats/fp8_block.h"
#include "formats/mxfp4.h"

namespace nibble {

void search_mxfp4(std::span<const float> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales);
void search_nvfp4(std::span<const float> values, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales);
void search_mxfp8(std::span<const float> values, std::uint8_t* codes, std::uint8_t* scales);
void search_fp8_block(const Fp8Band& band, const float* values, std::uint8_t* codes, float* scales);

}  // namespace nibble
