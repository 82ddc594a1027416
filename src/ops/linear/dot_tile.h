// The inner product every matrix op is made of, and its order of additions, which is a contract: for one
// output element the bits depend on its weights and its input alone, not on what else is computed beside
// it, nor on the instruction set.
//
//   K is walked in steps of 32 (a short last step is padded with zeros). Within a step the products of the
//   even k are summed in order from 0, those of the odd k likewise, and the two sums are added. The running
//   total starts at 0 and takes in each step's sum; for MXFP4 and Q8 the products are those of the codes, and
//   the step's sum is multiplied by the block's scale first. Each product and each sum is rounded to float32;
//   where inputs are bfloat16, products are added unrounded (they are exact but for overflow and underflow).
//
//   Where inputs are eight-bit, those of a product with MXFP4 or Q8 weights are rounded once more: the 32 of
//   a step to integers of at most 127, to nearest, ties to even, times a scale, the largest magnitude / 127.
//   The sum of a step is then an exact integer, and float32 from there: times the input's scale, times the
//   block's, added to the total of its place among eight steps, each rounded. The eight totals, from 0, are
//   added at the end, the first to the fifth and so on, those sums alike, and the last two. What is infinite
//   or no number makes all of its step no number.
//
//   Where inputs are FP8, those of a product with FP8 weights (weight_matrix.h) are rounded once more: a
//   whole row to E4M3 with one power of two (formats/e4m3_row.h). They stay bfloat16, so additions are as
//   ever.
//
//   Subnormal numbers count as zero, as operands and as results (scales excepted: they keep their value).
//   Inputs that are bfloat16 by contract count as 0 below 2^-60 and as infinite from 2^100 on.
//
// It is the order and the arithmetic of the AMX tile instruction, and of VDPBF16PS where it is given pairs of
// k of one parity; vector and scalar code follow with the CPU's flush-to-zero modes on. The bounds on inputs
// make a block's scale, if its byte is in [scale_byte_min, scale_byte_max], commute with the sum of the step:
// nothing can leave the range of normal numbers on the way, so scaled weights give the bits of scaled sums.
#pragma once

#include <cstdint>

#include "formats/bf16.h"

namespace nibble {

inline constexpr int dot_step = 32;
inline constexpr int tile_rows = 16;

// Dense bfloat16 weights as the checkpoint stores them.
struct Bf16Matrix {
  const Bf16* data = nullptr;  // [rows, cols]
  int rows = 0;
  int cols = 0;
};

// What the floats of an input may be. A product of two bfloat16 values is exact in float32, so a fused
// multiply-add then gives the contract's bits at half the instructions. int8: bfloat16 too, and eight-bit
// codes where the weights are in blocks. fp8: bfloat16 too, and of FP8's precision where the weights are FP8.
enum class InputValues : std::uint8_t { any_float, bf16, int8, fp8 };

// As a product with bfloat16 weights takes them.
inline InputValues beside_bf16(InputValues values) {
  return values == InputValues::any_float ? values : InputValues::bf16;
}

inline constexpr float smallest_bf16_input = 0x1p-60f;
inline constexpr float infinite_bf16_input = 0x1p100f;
// With |x| in [2^-60, 2^100) a step's sum of codes is a multiple of 2^-68 below 2^112.
inline constexpr int scale_byte_min = 127 - 58;
inline constexpr int scale_byte_max = 127 + 15;

// Products of a tile of rows with one input.
using TileTotals = float[tile_rows];

// The same sum for two float vectors; n is a multiple of dot_step.
inline float dot(const float* a, const float* b, int n) {
  float total = 0;
  for (int k = 0; k < n; k += dot_step) {
    float even = 0, odd = 0;
    for (int c = 0; c < dot_step; c += 2) {
      even += a[k + c] * b[k + c];
      odd += a[k + c + 1] * b[k + c + 1];
    }
    total += even + odd;
  }
  return total;
}

}  // namespace nibble
