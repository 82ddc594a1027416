#include "ops/linear/float_inputs.h"

namespace nibble {

void prepare_float_inputs(const DenseMatrix&, const DotInputs& inputs, int begin, int end) {
  const int cols = inputs.rows.cols;
  const std::int64_t stride = whole_steps(cols);
  for (int i = begin; i < end; ++i) {
    const float* x = inputs.rows[i];
    float* out = reinterpret_cast<float*>(inputs.prepared) + i * stride;
    if (inputs.values == InputValues::bf16) {
      std::transform(x, x + cols, out, bounded_bf16_input);
    } else {
      std::copy_n(x, cols, out);
    }
    std::fill(out + cols, out + stride, 0.0f);
  }
}

}  // namespace nibble
