// Inputs as eight-bit codes, for weights in blocks; see dot_tile.h.
#pragma once

#include <cstdint>

#include "ops/linear/dot_kernels.h"

namespace nibble {

// Whether these inputs of this matrix become codes.
inline bool takes_int8(const DenseMatrix& matrix, const DotInputs& inputs) {
  return inputs.values == InputValues::int8 && !std::holds_alternative<Bf16Matrix>(matrix);
}

// Eight steps of an input, arranged for the instructions that multiply four bytes by four and add the
// products up: word w of each step, step by step, in the order of int8_lane. A step's words are of MXFP4 the
// even k of 0 .. 7 and the odd ones, those of 8 .. 15, and so on; of Q8 k = 0 .. 3, 4 .. 7, and so on. Steps
// past the last one are zeros.
struct alignas(32) Int8Group {
  static constexpr int steps = 8, words = dot_step / 4;
  std::int8_t codes[words][steps][4];
  float scales[steps];        // in the order of int8_lane too
  std::int32_t start[steps];  // of a step's sum, if what is added to the format's weights (below) is
};
static_assert(sizeof(Int8Group) <= Int8Group::steps * dot_step * sizeof(float), "what prepared_bytes gives");
// Where a step of eight lies: its parity leads to one half of a register, which is how the weights' words
// come out of the instructions that transpose them.
inline constexpr int int8_lane(int step) { return step % 2 * 4 + step / 2; }
// To twice an MXFP4 weight's value and to a Q8 weight's code, which are then no longer negative.
inline constexpr int int8_mxfp4_added = 12, int8_q8_added = 128;

// Up to a group's steps of an input, from x on. All encoders give the same bytes.
using EncodeInt8Group = void (*)(const DenseMatrix& matrix, const float* x, int steps, Int8Group& group);
void scalar_encode_int8_group(const DenseMatrix& matrix, const float* x, int steps, Int8Group& group);
void avx2_encode_int8_group(const DenseMatrix& matrix, const float* x, int steps, Int8Group& group);

// Prepared inputs, those of the VNNI kernel for few excepted, lie in blocks of so many, one block behind the
// other; of a block the first group of each, then the second, and so on. Only the last block may be short.
struct Int8Inputs {
  static constexpr int block = 8;
  Int8Group* first = nullptr;
  int count = 0, groups = 0;  // inputs; groups of each

  explicit Int8Inputs(const DotInputs& inputs)
      : first(reinterpret_cast<Int8Group*>(inputs.prepared)),
        count(inputs.rows.count),
        groups((inputs.rows.cols / dot_step + Int8Group::steps - 1) / Int8Group::steps) {}
  // Of the block that begins with input `begin`.
  int block_size(int begin) const { return count - begin < block ? count - begin : block; }
  Int8Group* group(int begin, int g) const {
    return first + static_cast<std::int64_t>(begin) * groups +
           static_cast<std::int64_t>(g) * block_size(begin);
  }
  Int8Group& at(int input, int g) const { return group(input / block * block, g)[input % block]; }
};
void prepare_int8_inputs(EncodeInt8Group encode, const DenseMatrix& matrix, const DotInputs& inputs,
                         int begin, int end);

// What DotKernels has, of inputs so prepared.
void scalar_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void scalar_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store);
void avx2_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx2_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                        const TotalsSink& store);

// With VNNI and VBMI, of inputs as these prepare them.
void avx512_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
void avx512_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store);

}  // namespace nibble
