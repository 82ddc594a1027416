// The inner product every matrix op is made of, and its order of additions, which is a contract: for one
// output element the bits depend on its weights and its input alone, not on what else is computed beside
// it, nor on the instruction set.
//
//   K is walked in steps of 32 (a short last step is padded with zeros). Within a step the products of the
//   even k are summed in order from 0, those of the odd k likewise, and the two sums are added. The running
//   total starts at 0 and takes in each step's sum; for MXFP4 the products are those of the codes, and the
//   step's sum is multiplied by the block's scale first. Each product and each sum is rounded to float32.
//
// It is the order in which the AMX tile instruction adds, so that tile, vector and scalar code can agree.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "formats/bf16.h"
#include "formats/mxfp4.h"

namespace nibble {

inline constexpr int dot_step = 32;
inline constexpr int tile_rows = 16;
// Inputs of one call: their totals stay in the first-level cache.
inline constexpr int max_tile_inputs = 64;

// Dense bfloat16 weights as the checkpoint stores them.
struct Bf16Matrix {
  const Bf16* data = nullptr;  // [rows, cols]
  int rows = 0;
  int cols = 0;
};

// What the floats of an input may be. A product of two bfloat16 values is exact in float32, so a fused
// multiply-add then gives the contract's bits at half the instructions.
enum class InputValues : std::uint8_t { any_float, bf16 };

// Products of rows [row, row + tile_rows) of a matrix (fewer at its end) with each of at most
// max_tile_inputs inputs ([cols] floats each). Rows past the end give zeros.
using TileTotals = float[tile_rows];
struct DotKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  void (*bf16)(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
               TileTotals* totals);
  void (*mxfp4)(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                InputValues values, TileTotals* totals);
};

// Every implementation that was built, in order of preference; the last one runs anywhere. All give the
// same bits.
std::span<const DotKernels> dot_kernels();
// The first that this machine supports.
const DotKernels& best_dot_kernels();

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
