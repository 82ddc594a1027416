#include <algorithm>

#include "ops/linear/linear.h"

namespace nibble {

void linear(OpContext& context, const LinearArgs& args) {
  const int tiles = (args.weight.rows + tile_rows - 1) / tile_rows;
  context.threads.parallel_for(tiles, [&](int tile_begin, int tile_end) {
    const float* inputs[max_tile_inputs];
    TileTotals totals[max_tile_inputs];
    for (int first = 0; first < args.rows; first += max_tile_inputs) {
      const int count = std::min(max_tile_inputs, args.rows - first);
      for (int i = 0; i < count; ++i)
        inputs[i] = args.x + static_cast<std::int64_t>(first + i) * args.weight.cols;
      for (int row = tile_begin * tile_rows; row < std::min(tile_end * tile_rows, args.weight.rows);
           row += tile_rows) {
        context.dots.bf16(args.weight, row, std::span(inputs, static_cast<std::size_t>(count)),
                          context.activations, totals);
        const int rows = std::min(tile_rows, args.weight.rows - row);
        for (int i = 0; i < count; ++i) {
          float* y = args.y + static_cast<std::int64_t>(first + i) * args.weight.rows + row;
          for (int r = 0; r < rows; ++r)
            y[r] = args.bias ? totals[i][r] + args.bias[row + r].to_float() : totals[i][r];
        }
      }
    }
  });
}

}  // namespace nibble
