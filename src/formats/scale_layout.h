// Where the scale of (row m, scale column k) lies. Each layout is a type: code that was written for one
// cannot be handed another, and each has a tag for where bytes leave the program.
//
//   linear  row-major
//   128x4   tiles of 128 rows x 4 columns, 512 bytes; inside a tile rows m % 32 first, then the four
//           quarters m / 32, then columns: what tensor cores with block scaling read
//   8x4     tiles of 8 rows x 4 columns, 32 bytes, row-major inside
//
// Rows and columns are padded to whole tiles; padding bytes are zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/status.h"

namespace nibble {

struct ScaleShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // K / block

  friend bool operator==(const ScaleShape&, const ScaleShape&) = default;
};

namespace scale_layout_detail {
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
}  // namespace scale_layout_detail

struct LinearScales {
  static constexpr std::string_view tag = "linear";
  static constexpr std::int64_t tile_rows = 1, tile_cols = 1;
  static constexpr std::int64_t offset(const ScaleShape& shape, std::int64_t m, std::int64_t k) {
    return m * shape.cols + k;
  }
};

struct Scales128x4 {
  static constexpr std::string_view tag = "128x4";
  static constexpr std::int64_t tile_rows = 128, tile_cols = 4;
  static constexpr std::int64_t offset(const ScaleShape& shape, std::int64_t m, std::int64_t k) {
    const std::int64_t tiles = (shape.cols + 3) / 4;
    return m / 128 * tiles * 512 + k / 4 * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
  }
};

struct Scales8x4 {
  static constexpr std::string_view tag = "8x4";
  static constexpr std::int64_t tile_rows = 8, tile_cols = 4;
  static constexpr std::int64_t offset(const ScaleShape& shape, std::int64_t m, std::int64_t k) {
    const std::int64_t tiles = (shape.cols + 3) / 4;
    return m / 8 * tiles * 32 + k / 4 * 32 + m % 8 * 4 + k % 4;
  }
};

// With padding.
template <class Layout>
constexpr std::int64_t scale_bytes(const ScaleShape& shape) {
  return scale_layout_detail::round_up(shape.rows, Layout::tile_rows) *
         scale_layout_detail::round_up(shape.cols, Layout::tile_cols);
}

// Scales of one byte each that somebody else owns.
template <class Layout>
struct ScaleView {
  const std::uint8_t* data = nullptr;  // [scale_bytes<Layout>(shape)]
  ScaleShape shape;

  std::uint8_t at(std::int64_t m, std::int64_t k) const { return data[Layout::offset(shape, m, k)]; }
};

// Refuses bytes that are not as many as the layout has for this shape.
template <class Layout>
Result<ScaleView<Layout>> view_scales(std::span<const std::uint8_t> bytes, const ScaleShape& shape) {
  const std::int64_t expected = scale_bytes<Layout>(shape);
  if (shape.rows < 0 || shape.cols < 0 || static_cast<std::int64_t>(bytes.size()) != expected) {
    return invalid_argument("scales of " + std::to_string(shape.rows) + " rows and " +
                            std::to_string(shape.cols) + " columns in the layout " +
                            std::string(Layout::tag) + " take " + std::to_string(expected) + " bytes, not " +
                            std::to_string(bytes.size()));
  }
  return ScaleView<Layout>{bytes.data(), shape};
}

// Every scale moves to its place in the other layout; padding is filled with zeros.
template <class To, class From>
void convert_scales(const ScaleView<From>& from, std::span<std::uint8_t> to) {  // [scale_bytes<To>(shape)]
  NIBBLE_CHECK(static_cast<std::int64_t>(to.size()) == scale_bytes<To>(from.shape));
  std::fill(to.begin(), to.end(), std::uint8_t{0});
  for (std::int64_t m = 0; m < from.shape.rows; ++m) {
    for (std::int64_t k = 0; k < from.shape.cols; ++k)
      to[static_cast<std::size_t>(To::offset(from.shape, m, k))] = from.at(m, k);
  }
}

}  // namespace nibble
