#include <algorithm>
#include <vector>

#include "ops/linear/linear.h"

namespace nibble {

void linear(OpContext& context, const LinearArgs& args) {
  const int tiles = (args.weight.rows + tile_rows - 1) / tile_rows;
  context.threads.parallel_for(tiles, [&](int tile_begin, int tile_end) {
    constexpr int rows_at_once = 64;
    const float* inputs[rows_at_once];
    for (int first = 0; first < args.rows; first += rows_at_once) {
      const int count = std::min(rows_at_once, args.rows - first);
      for (int i = 0; i < count; ++i)
        inputs[i] = args.x + static_cast<std::int64_t>(first + i) * args.weight.cols;
      for (int tile = tile_begin; tile < tile_end; ++tile) {
        const int row = tile * tile_rows;
        const int rows = std::min(tile_rows, args.weight.rows - row);
        const auto store = [&](std::size_t i, const float* totals) {
          float* y = args.y + (first + static_cast<std::int64_t>(i)) * args.weight.rows + row;
          for (int r = 0; r < rows; ++r)
            y[r] = args.bias ? totals[r] + args.bias[row + r].to_float() : totals[r];
        };
        multiply_row_tile(args.weight, row, std::span(inputs, static_cast<std::size_t>(count)), store);
      }
    }
  });
}

}  // namespace nibble
