// Matrix products by rows, and the choice of the instruction set that computes them. An op
//   1. prepares the inputs of a matrix once, in the kernels' own arrangement, and
//   2. multiplies ranges of the matrix's rows by all of them, a range a thread; totals go to a sink.
// Additions are in the order of dot_tile.h whatever the kernels, so choosing them never changes a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "formats/mxfp4.h"
#include "formats/q8.h"
#include "ops/linear/dot_tile.h"
#include "ops/linear/weight_lines.h"

namespace nibble {

// Weights in any of the formats that a product takes.
using DenseMatrix = std::variant<Bf16Matrix, Q8Matrix, Mxfp4Checkpoint>;

inline int matrix_rows(const DenseMatrix& matrix) {
  return static_cast<int>(std::visit([](const auto& each) { return std::int64_t{each.rows}; }, matrix));
}
inline int matrix_cols(const DenseMatrix& matrix) {
  return static_cast<int>(std::visit([](const auto& each) { return std::int64_t{each.cols}; }, matrix));
}

// Which vectors are multiplied: input i is row i of `first`, or row slots[i] / slots_a_row.
struct InputRows {
  const float* first = nullptr;         // [.., cols]
  const std::int32_t* slots = nullptr;  // [count]
  int slots_a_row = 1;
  int count = 0;
  int cols = 0;

  const float* operator[](int i) const {
    return first + static_cast<std::int64_t>(slots == nullptr ? i : slots[i] / slots_a_row) * cols;
  }
};

struct DotInputs {
  InputRows rows;
  InputValues values = InputValues::any_float;
  WeightLines lines = WeightLines::each;
  std::byte* prepared = nullptr;  // prepared_bytes(rows.cols, rows.count), at a multiple of 64
};

// Inputs are prepared in groups of this many; only the last group of a matrix may be short.
inline constexpr int input_group = 16;
// Room for the prepared inputs of one matrix, whichever kernels prepare them; a multiple of 64.
std::size_t prepared_bytes(int cols, int count);
// Rows are multiplied in ranges that begin at a multiple of this.
inline constexpr int range_rows = 32;

// Takes the products of rows [row, row + tile_rows) with one input. Those of rows past the matrix's end mean
// nothing. The callable it is made from must outlive it.
class TotalsSink {
 public:
  template <class Store>
  explicit TotalsSink(const Store& store)
      : store_(&store), call_([](const void* object, int row, int input, const float* totals) {
          (*static_cast<const Store*>(object))(row, input, totals);
        }) {}
  void operator()(int row, int input, const float* totals) const { call_(store_, row, input, totals); }

 private:
  const void* store_;
  void (*call_)(const void* store, int row, int input, const float* totals);
};

// Call them through prepare_rows and multiply_rows.
struct DotKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  // Inputs [begin, end) of the matrix into their place; begin is a multiple of input_group.
  void (*prepare)(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
  // Rows [begin, end) by all inputs; begin is a multiple of range_rows.
  void (*multiply)(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                   const TotalsSink& store);
  // The same where inputs become eight-bit codes (int8_inputs.h).
  void (*prepare_int8)(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end);
  void (*multiply_int8)(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                        const TotalsSink& store);
};

void prepare_rows(const DotKernels& kernels, const DenseMatrix& matrix, const DotInputs& inputs, int begin,
                  int end);
// kernels.multiply with subnormal numbers counting as zero, on this thread and for as long as it runs; the
// sink is called in that mode too.
void multiply_rows(const DotKernels& kernels, const DenseMatrix& matrix, int begin, int end,
                   const DotInputs& inputs, const TotalsSink& store);

// Every implementation that was built, in order of preference; the last one runs anywhere. All give the
// same bits.
std::span<const DotKernels> dot_kernels();
// The first that this machine supports.
const DotKernels& best_dot_kernels();
// Null when there are none of that name.
const DotKernels* find_dot_kernels(std::string_view name);

}  // namespace nibble
