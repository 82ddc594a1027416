// The layout of MXFP4 expert weights that FlashInfer's mixed-input matrix product reads on SM90, under the
// name flashinfer_sm90_w4. Weights that are not in it are not refused there, they give wrong numbers: so it
// is a type.
//
//   weights [rows, cols / 2] bytes, permuted inside tiles of 16 rows x 64 columns. Words of 32 bits: the one
//   at
//           (r', j) holds the codes of rows r in {r' % 8, r' % 8 + 8} at columns c, c + 1, c + 8, c + 9 with
//           c = (j / 4) * 32 + (r' / 8) * 16 + (j % 4) * 2. The bits of a pair lie so that a shift and a mask
//           leave two bfloat16 numbers, 2^-126 of their values: low half (r, c), high half (r, c + 1)
//   scales  [rows / 64, cols / 128, 16, 16] bytes: scale (r, g) lies at
//           [r / 64, g / 4, r % 16, (r % 64) / 16 * 4 + g % 4]
//
// Rows are a multiple of 64 and columns of 128. Experts follow one another.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "formats/mxfp4.h"

namespace nibble {

struct Sm90W4Layout {
  static constexpr std::string_view tag = "flashinfer_sm90_w4";
};
using Sm90W4 = Mxfp4View<Sm90W4Layout>;

// Whether a matrix of this shape has this layout.
Status check_sm90_w4_shape(std::int64_t rows, std::int64_t cols);

// A matrix of this layout from its bytes, whose numbers must be those of the shape.
Result<Sm90W4> view_sm90_w4(std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales,
                            std::int64_t rows, std::int64_t cols);

// From a checkpoint's layout and back: bijections. blocks: [rows * cols / 2], scales: [rows * cols / 32].
Status pack_sm90_w4(const Mxfp4Checkpoint& matrix, std::span<std::uint8_t> blocks,
                    std::span<std::uint8_t> scales);
Status unpack_sm90_w4(const Sm90W4& matrix, std::span<std::uint8_t> blocks, std::span<std::uint8_t> scales);

// Four pairs of codes -> the word, and back. A byte of `pairs` holds (r, c) low and (r, c + 1) high; in order
// they are (r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8).
constexpr std::uint32_t sm90_w4_word(std::uint32_t pairs) {
  // Sign and magnitude of both codes of a byte go to the places of its turn; the last one's are split, since
  // only scattered bits are left for it.
  return (pairs & 0x00000080u) << 24 | (pairs & 0x00000070u) << 18 | (pairs & 0x00000008u) << 12 |
         (pairs & 0x00000007u) << 6 | (pairs & 0x00008000u) << 13 | (pairs & 0x00007000u) << 7 |
         (pairs & 0x00000800u) << 1 | (pairs & 0x00000700u) >> 5 | (pairs & 0x00800000u) << 2 |
         (pairs & 0x00700000u) >> 4 | (pairs & 0x00080000u) >> 10 | (pairs & 0x00070000u) >> 16 |
         (pairs & 0x80000000u) >> 1 | (pairs & 0x10000000u) << 1 | (pairs & 0x60000000u) >> 3 |
         (pairs & 0x08000000u) >> 13 | (pairs & 0x01000000u) >> 11 | (pairs & 0x06000000u) >> 15;
}
constexpr std::uint32_t sm90_w4_pairs(std::uint32_t word) {
  return (word >> 24 & 0x00000080u) | (word >> 18 & 0x00000070u) | (word >> 12 & 0x00000008u) |
         (word >> 6 & 0x00000007u) | (word >> 13 & 0x00008000u) | (word >> 7 & 0x00007000u) |
         (word >> 1 & 0x00000800u) | (word << 5 & 0x00000700u) | (word >> 2 & 0x00800000u) |
         (word << 4 & 0x00700000u) | (word << 10 & 0x00080000u) | (word << 16 & 0x00070000u) |
         (word << 1 & 0x80000000u) | (word >> 1 & 0x10000000u) | (word << 3 & 0x60000000u) |
         (word << 13 & 0x08000000u) | (word << 11 & 0x01000000u) | (word << 15 & 0x06000000u);
}

}  // namespace nibble
