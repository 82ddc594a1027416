#include <algorithm>

#include "base/check.h"
#include "ops/linear/dot_kernels.h"
#include "ops/moe/moe.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// Slot s = row * top_k + choice. Counting sort: within an expert the slots stay in order of the rows.
void group_by_expert(const MoeMxfp4Args& args, int experts) {
  const int slots = args.rows * args.top_k;
  std::fill_n(args.offsets, experts + 1, 0);
  for (int s = 0; s < slots; ++s) ++args.offsets[args.expert_ids[s] + 1];
  for (int e = 0; e < experts; ++e) args.offsets[e + 1] += args.offsets[e];
  for (int s = 0; s < slots; ++s) args.slots[args.offsets[args.expert_ids[s]]++] = s;
  // Filling moved each beginning to its end, which is the next one's beginning.
  for (int e = experts; e > 0; --e) args.offsets[e] = args.offsets[e - 1];
  args.offsets[0] = 0;
}

// What is prepared of each expert's inputs begins where the expert's slots do, its group's padding counted.
std::size_t prepared_before(const MoeMxfp4Args& args, int expert, int cols) {
  std::size_t bytes = 0;
  for (int e = 0; e < expert; ++e) bytes += prepared_bytes(cols, args.offsets[e + 1] - args.offsets[e]);
  return bytes;
}

DotInputs inputs_of_expert(const OpContext& context, const MoeMxfp4Args& args, int expert, const float* x,
                           int slots_a_row, int cols) {
  const int first = args.offsets[expert], count = args.offsets[expert + 1] - first;
  return {.rows = {.first = x,
                   .slots = args.slots + first,
                   .slots_a_row = slots_a_row,
                   .count = count,
                   .cols = cols},
          .values = context.activations,
          .lines = context.weight_lines,
          .prepared = args.workspace.data() + prepared_before(args, expert, cols)};
}

// Every used expert's matrix times the inputs routed to it: slot s is row s / slots_a_row of x.
// store(expert, row, slot, totals) takes tile_rows products.
template <class Store>
void multiply_routed(OpContext& context, const std::vector<Mxfp4Checkpoint>& matrices,
                     const MoeMxfp4Args& args, const float* x, int slots_a_row, const Store& store) {
  const int experts = static_cast<int>(matrices.size());
  const int rows = static_cast<int>(matrices[0].rows), cols = static_cast<int>(matrices[0].cols);
  context.threads.parallel_for(experts, [&](int begin, int end) {
    for (int expert = begin; expert < end; ++expert) {
      const DotInputs inputs = inputs_of_expert(context, args, expert, x, slots_a_row, cols);
      prepare_rows(context.dots, matrices[static_cast<std::size_t>(expert)], inputs, 0, inputs.rows.count);
    }
  });
  // Expert by expert, so that a thread's pieces follow one another in memory and a few experts' inputs stay
  // in its caches.
  const int ranges = (rows + range_rows - 1) / range_rows;
  int used = 0;
  for (int expert = 0; expert < experts; ++expert) used += args.offsets[expert + 1] > args.offsets[expert];
  context.threads.parallel_for(used * ranges, [&](int begin, int end) {
    for (int expert = 0, first = 0; expert < experts && first < end; ++expert) {
      if (args.offsets[expert + 1] == args.offsets[expert]) continue;
      const int from = std::max(begin, first) - first, to = std::min(end, first + ranges) - first;
      first += ranges;
      if (from >= to) continue;
      const DotInputs inputs = inputs_of_expert(context, args, expert, x, slots_a_row, cols);
      const auto store_slot = [&](int row, int input, const float* totals) {
        store(expert, row, inputs.rows.slots[input], totals);
      };
      multiply_rows(context.dots, matrices[static_cast<std::size_t>(expert)], from * range_rows,
                    std::min(to * range_rows, rows), inputs, TotalsSink(store_slot));
    }
  });
}

}  // namespace

std::size_t moe_workspace_bytes(int slots, int experts, int inputs) {
  // Each expert that is used may leave its last group short.
  return prepared_bytes(inputs, slots + (input_group - 1) * std::min(slots, experts));
}

void moe_mxfp4(OpContext& context, const MoeMxfp4Weights& weights, const MoeMxfp4Args& args) {
  const int experts = static_cast<int>(weights.gate_up.size());
  const int hidden = static_cast<int>(weights.down[0].rows);
  const int intermediate = static_cast<int>(weights.down[0].cols);
  static_assert(tile_rows % 2 == 0, "a gate and its up projection lie in one tile");
  NIBBLE_CHECK(args.workspace.size() >=
               moe_workspace_bytes(args.rows * args.top_k, experts, std::max(hidden, intermediate)));
  group_by_expert(args, experts);

  multiply_routed(context, weights.gate_up, args, args.x, args.top_k,
                  [&](int expert, int row, int slot, const float* totals) {
                    const Bf16* bias =
                        weights.gate_up_bias + static_cast<std::int64_t>(expert) * 2 * intermediate + row;
                    float* h = args.activations + static_cast<std::int64_t>(slot) * intermediate + row / 2;
                    context.rows.swiglu(totals, bias, weights.swiglu_limit, context.rounds_to_bf16(),
                                        std::min(tile_rows / 2, intermediate - row / 2), h);
                  });

  multiply_routed(context, weights.down, args, args.activations, 1,
                  [&](int expert, int row, int slot, const float* totals) {
                    const Bf16* bias = weights.down_bias + static_cast<std::int64_t>(expert) * hidden + row;
                    float* y = args.products + static_cast<std::int64_t>(slot) * hidden + row;
                    const int rows = std::min(tile_rows, hidden - row);
                    for (int r = 0; r < rows; ++r) y[r] = totals[r] + bias[r].to_float();
                  });

  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* out = args.out + static_cast<std::int64_t>(row) * hidden;
      const float* weight = args.expert_weights + static_cast<std::int64_t>(row) * args.top_k;
      const float* y = args.products + static_cast<std::int64_t>(row) * args.top_k * hidden;
      for (int i = 0; i < hidden; ++i) out[i] = weight[0] * y[i];
      for (int choice = 1; choice < args.top_k; ++choice) {
        y += hidden;
        for (int i = 0; i < hidden; ++i) out[i] += weight[choice] * y[i];
      }
    }
  });
}

}  // namespace nibble
