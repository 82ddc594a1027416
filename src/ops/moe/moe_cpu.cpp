#include <algorithm>

#include "base/check.h"
#include "ops/linear/input_parts.h"
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

// run(index, expert, inputs) for each part of each used expert's inputs, one expert after the other; how many
// there are. What is prepared of an expert's inputs begins where that of the experts before it ends.
template <class Run>
int for_each_part(const OpContext& context, const MoeMxfp4Args& args, int experts, const float* x,
                  int slots_a_row, int cols, const Run& run) {
  int index = 0;
  std::byte* prepared = args.workspace.data();
  for (int expert = 0; expert < experts; ++expert) {
    const int first = args.offsets[expert], count = args.offsets[expert + 1] - first;
    if (count == 0) continue;
    const InputParts parts({.rows = {.first = x,
                                     .slots = args.slots + first,
                                     .slots_a_row = slots_a_row,
                                     .count = count,
                                     .cols = cols},
                            .values = context.activations,
                            .lines = context.weight_lines,
                            .prepared = prepared});
    for (int part = 0; part < parts.size(); ++part) run(index++, expert, parts[part]);
    prepared += prepared_bytes(cols, count);
  }
  return index;
}

// Every used expert's matrix times the inputs routed to it: slot s is row s / slots_a_row of x.
// store(expert, row, slot, totals) takes tile_rows products.
template <class Store>
void multiply_routed(OpContext& context, const std::vector<Mxfp4Checkpoint>& matrices,
                     const MoeMxfp4Args& args, const float* x, int slots_a_row, const Store& store) {
  const int experts = static_cast<int>(matrices.size());
  const int rows = static_cast<int>(matrices[0].rows), cols = static_cast<int>(matrices[0].cols);
  const auto each_part = [&](const auto& run) {
    return for_each_part(context, args, experts, x, slots_a_row, cols, run);
  };
  const int parts = each_part([](int, int, const DotInputs&) {});
  context.threads.parallel_for(parts, [&](int begin, int end) {
    each_part([&](int index, int expert, const DotInputs& inputs) {
      if (index < begin || index >= end) return;
      prepare_rows(context.dots, matrices[static_cast<std::size_t>(expert)], inputs, 0, inputs.rows.count);
    });
  });
  // Part by part, so that a thread's pieces follow one another in memory and a few parts stay in its caches.
  const int ranges = (rows + range_rows - 1) / range_rows;
  context.threads.parallel_for(parts * ranges, [&](int begin, int end) {
    each_part([&](int index, int expert, const DotInputs& inputs) {
      const int from = std::max(begin - index * ranges, 0), to = std::min(end - index * ranges, ranges);
      if (from >= to) return;
      const auto store_slot = [&](int row, int input, const float* totals) {
        store(expert, row, inputs.rows.slots[input], totals);
      };
      multiply_rows(context.dots, matrices[static_cast<std::size_t>(expert)], from * range_rows,
                    std::min(to * range_rows, rows), inputs, TotalsSink(store_slot));
    });
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
