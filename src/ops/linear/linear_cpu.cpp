#include <algorithm>

#include "base/check.h"
#include "ops/linear/linear.h"

namespace nibble {

std::size_t linear_workspace_bytes(int rows, int in) { return prepared_bytes(in, rows); }

void linear(OpContext& context, const LinearArgs& args) {
  const int in = matrix_cols(args.weight), out = matrix_rows(args.weight);
  NIBBLE_CHECK(args.workspace.size() >= linear_workspace_bytes(args.rows, in));
  const DotInputs inputs{.rows = {.first = args.x, .count = args.rows, .cols = in},
                         .values = context.activations,
                         .lines = context.weight_lines,
                         .prepared = args.workspace.data()};
  context.threads.parallel_for((args.rows + input_group - 1) / input_group, [&](int begin, int end) {
    prepare_rows(context.dots, args.weight, inputs, begin * input_group,
                 std::min(end * input_group, args.rows));
  });
  const auto store = [&](int row, int input, const float* totals) {
    float* y = args.y + static_cast<std::int64_t>(input) * out + row;
    const int rows = std::min(tile_rows, out - row);
    if (args.bias == nullptr) {
      std::copy_n(totals, rows, y);
    } else {
      for (int r = 0; r < rows; ++r) y[r] = totals[r] + args.bias[row + r].to_float();
    }
  };
  context.threads.parallel_for((out + range_rows - 1) / range_rows, [&](int begin, int end) {
    multiply_rows(context.dots, args.weight, begin * range_rows, std::min(end * range_rows, out), inputs,
                  TotalsSink(store));
  });
}

}  // namespace nibble
