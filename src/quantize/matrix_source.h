// A matrix as it lies in a checkpoint: rows of weights that share their inputs, perhaps as the columns of a
// stored tensor (gpt-oss keeps its experts transposed, gate and up rows alternating).
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace nibble {

struct MatrixSource {
  ConstTensor tensor;           // bf16, f16 or f32, at any address
  std::int64_t offset = 0;      // elements before (0, 0)
  std::int64_t row_stride = 0;  // elements from a row to the next
  std::int64_t col_stride = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t values() const { return rows * cols; }
};

// Rows [begin, end) as floats, exactly. out: [end - begin, cols].
void read_rows(const MatrixSource& source, std::int64_t begin, std::int64_t end, float* out);

// Whether weights of this type can be quantized.
bool is_wide(DType dtype);

}  // namespace nibble
