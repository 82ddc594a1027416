// Rows of activations rounded to FP8, as products on FP8 tensor cores read them.
//
//   scale   one a row, as formats/e4m3_row.h: the smallest power of two, 2^-100 at least, with which no
//   magnitude is above 448.
//           Of a row of zeros 1, and NaN where a value is an infinity or a NaN
//   codes   E4M3 of value / scale, nearest even. 128 columns of a row are 128 bytes; past the last one are
//           zeros
//
// Codes lie so that they meet the words of the weights' granules (block_matrices.h) as those come, without a
// shuffle. In a k64 block, lane t of a row's four has words 0 .. 3 of four codes each. Word w is multiplied
// in the k32 step w / 2, where the lane's codes stand at 16 (w % 2) + 4t .. + 3, the second and the third of
// them exchanged (paired_e4m3).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"
#include "formats/e4m3_row.h"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/linear/rounded_room.h"

namespace nibble {

struct RoundedRows {
  const std::uint8_t* codes = nullptr;  // [rows, rounded_row_bytes(cols)], at a multiple of 16
  const float* scales = nullptr;        // [rows], or one for each row of outputs
};

// Where the codes of a k64 block's sixteen, those of lane t in quarters or of step t in steps, begin, a word
// of four: word w's place.
NIBBLE_HOST_DEVICE constexpr int rounded_word_place(ColumnOrder order, int sixteen, int word) {
  return order == ColumnOrder::quarters ? 16 * word + 4 * sixteen : 16 * sixteen + 4 * word;
}
// Which of its sixteen elements that word holds, byte by byte.
NIBBLE_HOST_DEVICE constexpr int rounded_element(ColumnOrder order, int word, int byte) {
  const int code = byte == 1 ? 2 : byte == 2 ? 1 : byte;
  return order == ColumnOrder::quarters ? 4 * word + code : 2 * word + code % 2 + code / 2 * 8;
}

// 2^e of a row whose largest magnitude has these bits as a bfloat16, a finite number.
NIBBLE_HOST_DEVICE constexpr int rounded_exponent(int largest_bits) {
  constexpr int least = least_e4m3_row_exponent, bias = 127, of_448 = 8, fraction_of_448 = 0x60;
  if (largest_bits == 0) return 0;
  const int exponent = largest_bits / 128 - bias - of_448 + (largest_bits % 128 > fraction_of_448 ? 1 : 0);
  return exponent < least ? least : exponent;
}

// Where rows go on their way into products with FP8 weights; null: they stay as they are.
struct RoundingRoom {
  std::uint8_t* codes = nullptr;  // RoundedRows' of the rows of a product, and their scales
  float* scales = nullptr;
};

// All pointers are to device memory.
struct RoundRowsCudaArgs {
  // One of them: token tiles of `cols` columns, or plain rows of x_stride columns, a multiple of 8.
  TokenTiles tiles;
  const Bf16* x = nullptr;
  int x_stride = 0;
  int rows = 0, cols = 0;  // cols: a multiple of 16
  ColumnOrder order = ColumnOrder::quarters;
  RoundingRoom to;
  int copies = 1;  // of each scale, one after the other
};
void round_rows_cuda(const RoundRowsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
