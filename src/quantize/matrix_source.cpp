#include "quantize/matrix_source.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/fp16.h"

namespace nibble {
namespace {

float widened(float value) { return value; }
float widened(Bf16 value) { return value.to_float(); }
float widened(Fp16 value) { return value.to_float(); }

// Element i of what may lie at any address.
template <class T>
float at(const std::byte* elements, std::int64_t i) {
  T element;
  std::memcpy(&element, elements + i * static_cast<std::int64_t>(sizeof element), sizeof element);
  return widened(element);
}

template <class T>
void read(const MatrixSource& source, std::int64_t begin, std::int64_t end, float* out) {
  const std::byte* first = source.tensor.data + source.offset * static_cast<std::int64_t>(sizeof(T));
  if (source.col_stride == 1) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < source.cols; ++col)
        out[col] = at<T>(first, row * source.row_stride + col);
      out += source.cols;
    }
    return;
  }
  // Neighbours in memory are rows here. Squares, so that neither reading nor writing leaves a cache line half
  // used.
  constexpr std::int64_t side = 16;
  for (std::int64_t top = begin; top < end; top += side) {
    const std::int64_t height = std::min(side, end - top);
    for (std::int64_t left = 0; left < source.cols; left += side) {
      const std::int64_t width = std::min(side, source.cols - left);
      float square[side][side];
      for (std::int64_t col = 0; col < width; ++col) {
        const std::int64_t from = (left + col) * source.col_stride + top * source.row_stride;
        for (std::int64_t row = 0; row < height; ++row)
          square[row][col] = at<T>(first, from + row * source.row_stride);
      }
      for (std::int64_t row = 0; row < height; ++row)
        std::copy_n(square[row], width, out + (top - begin + row) * source.cols + left);
    }
  }
}

}  // namespace

void read_rows(const MatrixSource& source, std::int64_t begin, std::int64_t end, float* out) {
  NIBBLE_CHECK(0 <= begin && begin <= end && end <= source.rows);
  switch (source.tensor.dtype) {
    case DType::bf16: return read<Bf16>(source, begin, end, out);
    case DType::f16: return read<Fp16>(source, begin, end, out);
    default: return read<float>(source, begin, end, out);
  }
}

bool is_wide(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

}  // namespace nibble
