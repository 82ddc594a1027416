#include "formats/sm90_w4_layout.h"

#include <cstring>
#include <string>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::int64_t word_bytes = 4;

// The first of the four bytes that word j of row r' of the matrix holds, as an offset into row-major codes;
// the others lie 8 rows and 4 bytes further on.
std::int64_t first_pair(std::int64_t row, std::int64_t j, std::int64_t row_bytes) {
  const std::int64_t tile_row = row / 16 * 16, in_tile = row % 16;
  const std::int64_t col = j / 4 * 32 + in_tile / 8 * 16 + j % 4 * 2;
  return (tile_row + in_tile % 8) * row_bytes + col / 2;
}

// Runs visit(word's offset, the four pairs' offsets) over a matrix.
template <class Visit>
void for_words(std::int64_t rows, std::int64_t cols, const Visit& visit) {
  const std::int64_t row_bytes = cols / 2;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t j = 0; j < row_bytes / word_bytes; ++j) {
      const std::int64_t first = first_pair(row, j, row_bytes);
      const std::int64_t below = first + 8 * row_bytes;
      const std::int64_t pairs[4] = {first, below, first + 4, below + 4};
      visit(row * row_bytes + j * word_bytes, pairs);
    }
  }
}

std::int64_t scale_place(std::int64_t row, std::int64_t group, std::int64_t groups) {
  return (row / 64 * (groups / 4) + group / 4) * 256 + row % 16 * 16 + row % 64 / 16 * 4 + group % 4;
}

void check_sizes(std::int64_t rows, std::int64_t cols, std::size_t blocks, std::size_t scales) {
  NIBBLE_CHECK(static_cast<std::int64_t>(blocks) == rows * cols / 2);
  NIBBLE_CHECK(static_cast<std::int64_t>(scales) == rows * cols / mxfp4_block);
}

}  // namespace

Status check_sm90_w4_shape(std::int64_t rows, std::int64_t cols) {
  if (rows >= 0 && cols >= 0 && rows % 64 == 0 && cols % 128 == 0) return {};
  return invalid_argument("the layout " + std::string(Sm90W4Layout::tag) +
                          " needs rows in 64s and columns in 128s, not [" + std::to_string(rows) + ", " +
                          std::to_string(cols) + "]; pad the matrix with zeros");
}

Result<Sm90W4> view_sm90_w4(std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales,
                            std::int64_t rows, std::int64_t cols) {
  NIBBLE_RETURN_IF_ERROR(check_sm90_w4_shape(rows, cols));
  if (static_cast<std::int64_t>(blocks.size()) != rows * cols / 2 ||
      static_cast<std::int64_t>(scales.size()) != rows * cols / mxfp4_block) {
    return invalid_argument("a matrix [" + std::to_string(rows) + ", " + std::to_string(cols) +
                            "] in the layout " + std::string(Sm90W4Layout::tag) + " takes " +
                            std::to_string(rows * cols / 2) + " bytes of codes and " +
                            std::to_string(rows * cols / mxfp4_block) + " of scales, not " +
                            std::to_string(blocks.size()) + " and " + std::to_string(scales.size()));
  }
  return Sm90W4{.blocks = blocks.data(), .scales = scales.data(), .rows = rows, .cols = cols};
}

Status pack_sm90_w4(const Mxfp4Checkpoint& matrix, std::span<std::uint8_t> blocks,
                    std::span<std::uint8_t> scales) {
  NIBBLE_RETURN_IF_ERROR(check_sm90_w4_shape(matrix.rows, matrix.cols));
  check_sizes(matrix.rows, matrix.cols, blocks.size(), scales.size());
  for_words(matrix.rows, matrix.cols, [&](std::int64_t at, const std::int64_t(&pairs)[4]) {
    std::uint32_t raw = 0;
    for (int i = 0; i < 4; ++i) raw |= std::uint32_t{matrix.blocks[pairs[i]]} << (8 * i);
    const std::uint32_t word = sm90_w4_word(raw);
    std::memcpy(blocks.data() + at, &word, sizeof word);
  });
  const std::int64_t groups = matrix.cols / mxfp4_block;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t group = 0; group < groups; ++group)
      scales[static_cast<std::size_t>(scale_place(row, group, groups))] = matrix.scales[row * groups + group];
  }
  return {};
}

Status unpack_sm90_w4(const Sm90W4& matrix, std::span<std::uint8_t> blocks, std::span<std::uint8_t> scales) {
  NIBBLE_RETURN_IF_ERROR(check_sm90_w4_shape(matrix.rows, matrix.cols));
  check_sizes(matrix.rows, matrix.cols, blocks.size(), scales.size());
  for_words(matrix.rows, matrix.cols, [&](std::int64_t at, const std::int64_t(&pairs)[4]) {
    std::uint32_t word = 0;
    std::memcpy(&word, matrix.blocks + at, sizeof word);
    const std::uint32_t raw = sm90_w4_pairs(word);
    for (int i = 0; i < 4; ++i)
      blocks[static_cast<std::size_t>(pairs[i])] = static_cast<std::uint8_t>(raw >> (8 * i));
  });
  const std::int64_t groups = matrix.cols / mxfp4_block;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t group = 0; group < groups; ++group)
      scales[static_cast<std::size_t>(row * groups + group)] = matrix.scales[scale_place(row, group, groups)];
  }
  return {};
}

}  // namespace nibble
