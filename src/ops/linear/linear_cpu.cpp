#include <algorithm>

#include "base/check.h"
#include "ops/linear/input_parts.h"
#include "ops/linear/linear.h"

namespace nibble {

std::size_t linear_workspace_bytes(int rows, int in) { return prepared_bytes(in, rows); }

void linear(OpContext& context, const LinearArgs& args) {
  const int in = weight_cols(args.weight), out = weight_rows(args.weight);
  NIBBLE_CHECK(args.workspace.size() >= linear_workspace_bytes(args.rows, in));
  const InputParts parts({.rows = {.first = args.x, .count = args.rows, .cols = in},
                          .values = context.activations,
                          .lines = context.weight_lines,
                          .prepared = args.workspace.data()});
  context.threads.parallel_for((args.rows + input_group - 1) / input_group, [&](int begin, int end) {
    for (int group = begin; group < end; ++group) {
      const DotInputs inputs = parts[group / parts.groups_a_part()];
      const int first = group % parts.groups_a_part() * input_group;
      prepare_weight_inputs(context.dots, args.weight, inputs, first,
                            std::min(first + input_group, inputs.rows.count));
    }
  });
  // Part by part, so that a thread has the same inputs for most of its rows.
  const int ranges = (out + range_rows - 1) / range_rows;
  context.threads.parallel_for(parts.size() * ranges, [&](int begin, int end) {
    WorkMeter meter(context.threads);
    for (int part = begin / ranges; part * ranges < end; ++part) {
      const int from = std::max(begin - part * ranges, 0), to = std::min(end - part * ranges, ranges);
      const auto store = [&](int row, int input, const float* totals) {
        float* y = args.y + static_cast<std::int64_t>(parts.first_input(part) + input) * out + row;
        const int rows = std::min(tile_rows, out - row);
        if (args.bias == nullptr) {
          std::copy_n(totals, rows, y);
        } else {
          for (int r = 0; r < rows; ++r) y[r] = totals[r] + args.bias[row + r].to_float();
        }
      };
      for_each_run_of_ranges(meter, from, to, parts[part], [&](int first, int last) {
        multiply_weight_rows(context.dots, args.weight, first * range_rows, std::min(last * range_rows, out),
                             parts[part], TotalsSink(store));
      });
    }
  });
}

}  // namespace nibble
