// Inputs as eight-bit codes, for weights in blocks; see dot_tile.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/linear/dot_kernels.h"

namespace nibble {

// Whether these inputs of this matrix become codes.
inline bool takes_int8(const DenseMatrix& matrix, const DotInputs& inputs) {
  return inputs.values == InputValues::int8 && !std::holds_alternative<Bf16Matrix>(matrix);
}

// Eight steps of an input. Codes of a step stand as the weights' kernels want them: of MXFP4 those of even k
// before those of odd k, of two steps in turns (even of step 2i, even of 2i + 1, odd of 2i, odd of 2i + 1);
// of Q8 as they are. Steps past the last one are zeros.
struct alignas(32) Int8Group {
  static constexpr int steps = 8;
  std::int8_t codes[steps * dot_step];
  float scales[steps];
  std::int32_t excess[steps];  // what a step's sum has too much if int8_mxfp4_added is added to each weight
};
// To twice an MXFP4 weight's value, which is then no longer negative.
inline constexpr int int8_mxfp4_added = 12;

// Prepared: group g of input i of n is the one at g * n + i.
void prepare_int8_inputs(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);

// The products of DotKernels::multiply, of such inputs.
void scalar_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store);
void avx2_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                        const TotalsSink& store);

}  // namespace nibble
