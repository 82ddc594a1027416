// The layout of MXFP4 matrices for tensor cores, one for few tokens and for many: granules of 16 rows.
//
// The weights are the M operand of m16n8k16 (or four granules that of wgmma's m64), decoded to bfloat16 in
// registers. A lane's share of four k16 steps lies together, so that one 16-byte load feeds them:
//
//   granule   16 consecutive rows over the whole of K; granules follow one another, experts too
//   chunk     K is cut into 8 chunks of whole k64 blocks, their borders a function of K alone. A chunk lies
//             together: the codes of its k64 blocks, then their scales
//   k64 block 32 lanes x 16 bytes of codes, and 16 rows x 2 bytes of scales: 544 bytes, as in a checkpoint
//
// Rows: operand row g of the upper half (0..7) holds row 2g of the granule, operand row g + 8 row 2g + 1. A
// gate and its up projection (rows 2i and 2i + 1 of gpt-oss) meet in one lane. K: in a block of 64 lane t of
// each row's four holds elements 16t .. 16t + 15, and step s takes the four of them that begin at 4s: operand
// columns 2t, 2t + 1, 2t + 8, 2t + 9. So activations stay in plain order: a lane reads 32 consecutive bytes,
// and needs the scale of one block of 32 a row. K is padded to 64 with zero codes; what the activations hold
// there must be finite.
//
// Order of additions of every product on this layout, an op's contract: within a chunk the tensor core's
// chain over its k16 steps from zero; the chunks' sums are added in order of the index. Nothing else enters
// it.
//
// A word of codes holds the two values of four bfloat16 pairs (operand registers a0..a3), placed so that a
// mask leaves a pair's sign at bit 15 and its magnitude at the exponent's low bits and the first bit of
// the mantissa, after a shift (the last two pairs take their signs by a second one). As a bfloat16 it reads
// as value x 2^-126; the multiplication by the scale corrects that, exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/mxfp4.h"
#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int granule_rows = 16;
inline constexpr int granule_k = 64;  // of K, in a block
inline constexpr int granule_k_chunks = 8;
inline constexpr int granule_code_bytes = 512;  // of a k64 block
inline constexpr int granule_scale_bytes = 32;  // of a k64 block
inline constexpr int granule_block_bytes = granule_code_bytes + granule_scale_bytes;

// Where things lie in one matrix [rows, cols].
struct GranuleShape {
  int rows = 0;  // a multiple of 16
  int cols = 0;  // a multiple of 32

  NIBBLE_HOST_DEVICE constexpr int granules() const { return rows / granule_rows; }
  NIBBLE_HOST_DEVICE constexpr int blocks() const { return (cols + granule_k - 1) / granule_k; }
  NIBBLE_HOST_DEVICE constexpr int padded_cols() const { return blocks() * granule_k; }
  NIBBLE_HOST_DEVICE constexpr int chunk_begin(int chunk) const {  // its first k64 block
    return chunk * blocks() / granule_k_chunks;
  }
  NIBBLE_HOST_DEVICE constexpr int granule_bytes() const { return blocks() * granule_block_bytes; }
  NIBBLE_HOST_DEVICE constexpr std::size_t bytes() const {
    return static_cast<std::size_t>(granules()) * static_cast<std::size_t>(granule_bytes());
  }
};

struct Mxfp4GranuleLayout {};

// Matrices of one shape in this layout, an expert after the other, on the device or on the host.
struct Mxfp4Granules {
  using Layout = Mxfp4GranuleLayout;
  const std::uint8_t* data = nullptr;  // [experts, shape.bytes()]
  int experts = 0;
  GranuleShape shape;
  int exponent_shift = 0;  // the weights are what the bytes say times 2^exponent_shift
};

// Pair i of a word: magnitudes go up by magnitude_shift[i] (the last one down by 3), signs by sign_shift[i].
inline constexpr std::uint32_t granule_magnitude_mask = 0x01c001c0u;
inline constexpr std::uint32_t granule_sign_mask = 0x80008000u;
inline constexpr int granule_magnitude_bit[4] = {6, 3, 0, 9};  // where a pair's magnitudes begin in each half
inline constexpr int granule_sign_bit[4] = {15, 12, 13, 14};

// Two codes of each of the four pairs -> a word. codes[i][j]: value j of pair i.
NIBBLE_HOST_DEVICE constexpr std::uint32_t granule_word(const std::uint8_t (&codes)[4][2]) {
  constexpr int magnitude[4] = {6, 3, 0, 9}, sign[4] = {15, 12, 13, 14};
  std::uint32_t word = 0;
  for (int pair = 0; pair < 4; ++pair) {
    for (int value = 0; value < 2; ++value) {
      const std::uint32_t code = codes[pair][value];
      word |= (code & 7u) << (16 * value + magnitude[pair]) | (code >> 3) << (16 * value + sign[pair]);
    }
  }
  return word;
}

// The four operand registers of a word before their scale: bfloat16 pairs that are 2^-126 of their values.
struct PlacedPairs {
  std::uint32_t pair[4];
};
NIBBLE_HOST_DEVICE constexpr PlacedPairs place_pairs(std::uint32_t word) {
  constexpr std::uint32_t both = granule_magnitude_mask | granule_sign_mask;
  return {{word & both, (word << 3) & both,
           ((word << 6) & granule_magnitude_mask) | ((word << 2) & granule_sign_mask),
           ((word >> 3) & granule_magnitude_mask) | ((word << 1) & granule_sign_mask)}};
}

// The stored byte of a scale is the exponent field of the bfloat16 that a placed pair is multiplied by:
// 2^(scale - 127) x 2^126, less the matrix's exponent shift. 255 stands for a scale that is NaN: infinity,
// and with it the packing zeroes the block's codes, whose products are then NaN.
NIBBLE_HOST_DEVICE constexpr std::uint8_t granule_scale_byte(std::uint8_t scale, int exponent_shift) {
  if (scale == E8m0::nan_bits) return 255;
  const int field = int{scale} + 126 - exponent_shift;
  return static_cast<std::uint8_t>(field < 0 ? 0 : field > 254 ? 254 : field);
}
NIBBLE_HOST_DEVICE constexpr std::uint32_t granule_multiplier(std::uint8_t stored) {  // in both halves
  return std::uint32_t{stored} * 0x00800080u;
}

// The shift that keeps a matrix's largest scale within a bfloat16 multiplier: 0 for scales up to 2. Weights
// whose scale is below 2^-133 of the largest then lose bits; no others do.
constexpr int granule_exponent_shift(std::uint8_t largest_scale) {
  return largest_scale > 128 ? int{largest_scale} - 128 : 0;
}

// What a lane of a granule's k64 block holds: codes for its 16 elements of row 2g and of row 2g + 1.
struct LaneCodes {
  std::uint32_t step[4];
};
NIBBLE_HOST_DEVICE constexpr LaneCodes pack_lane(const std::uint8_t (&even)[8],
                                                 const std::uint8_t (&odd)[8]) {
  LaneCodes lane{};
  for (int step = 0; step < 4; ++step) {
    const std::uint8_t a = even[2 * step], b = odd[2 * step], c = even[2 * step + 1], d = odd[2 * step + 1];
    const std::uint8_t codes[4][2] = {{static_cast<std::uint8_t>(a & 15), static_cast<std::uint8_t>(a >> 4)},
                                      {static_cast<std::uint8_t>(b & 15), static_cast<std::uint8_t>(b >> 4)},
                                      {static_cast<std::uint8_t>(c & 15), static_cast<std::uint8_t>(c >> 4)},
                                      {static_cast<std::uint8_t>(d & 15), static_cast<std::uint8_t>(d >> 4)}};
    lane.step[step] = granule_word(codes);
  }
  return lane;
}

// Byte offsets inside a granule.
struct GranulePlace {
  std::size_t codes = 0;   // of the block's codes; lane l's 16 bytes begin 16 l further on
  std::size_t scales = 0;  // of the block's scales; row 2g + half, block of 32 b: at 4g + 2b + half
};
NIBBLE_HOST_DEVICE constexpr GranulePlace granule_place(const GranuleShape& shape, int block) {
  int chunk = 0;
  while (shape.chunk_begin(chunk + 1) <= block) ++chunk;
  const int begin = shape.chunk_begin(chunk), count = shape.chunk_begin(chunk + 1) - begin;
  const std::size_t base = static_cast<std::size_t>(begin) * granule_block_bytes;
  const std::size_t index = static_cast<std::size_t>(block - begin);
  return {base + index * granule_code_bytes,
          base + static_cast<std::size_t>(count) * granule_code_bytes + index * granule_scale_bytes};
}

// Packs one matrix on the host: the oracle of the device's repacking. out: [shape.bytes()].
void pack_granules(const Mxfp4Checkpoint& matrix, int exponent_shift, std::span<std::uint8_t> out);

// The value of (row, col) of a matrix as the kernels read it: placed, then multiplied by its scale.
float granule_value(const Mxfp4Granules& matrices, int expert, int row, int col);

}  // namespace nibble
