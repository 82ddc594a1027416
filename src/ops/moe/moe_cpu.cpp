#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "ops/linear/input_parts.h"
#include "ops/moe/moe.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// Slot s = row * top_k + choice. Counting sort: within an expert the slots stay in order of the rows.
void group_by_expert(const MoeArgs& args, int experts) {
  const int slots = args.rows * args.top_k;
  const auto expert_of = [&](int slot) { return args.expert_ids[slot] - args.first_expert; };
  const auto is_here = [&](int slot) { return expert_of(slot) >= 0 && expert_of(slot) < experts; };
  std::fill_n(args.offsets, experts + 1, 0);
  for (int s = 0; s < slots; ++s) {
    if (is_here(s)) ++args.offsets[expert_of(s) + 1];
  }
  for (int e = 0; e < experts; ++e) args.offsets[e + 1] += args.offsets[e];
  for (int s = 0; s < slots; ++s) {
    if (is_here(s)) args.slots[args.offsets[expert_of(s)]++] = s;
  }
  // Filling moved each beginning to its end, which is the next one's beginning.
  for (int e = experts; e > 0; --e) args.offsets[e] = args.offsets[e - 1];
  args.offsets[0] = 0;
}

// run(index, expert, inputs) for each part of each used expert's inputs, one expert after the other; how many
// there are. What is prepared of an expert's inputs begins where that of the experts before it ends.
template <class Run>
int for_each_part(const OpContext& context, const MoeArgs& args, int experts, const float* x, int slots_a_row,
                  int cols, const Run& run) {
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

// A matrix an expert, and what takes its products: store(expert, row, slot, totals) gets tile_rows of them.
template <class Store>
struct Product {
  const std::vector<WeightMatrix>& matrices;
  const Store& store;
};

// Every used expert's matrices times the inputs routed to it: slot s is row s / slots_a_row of x. The
// products are of matrices of one shape and format, and follow one another for each range of rows.
template <class... Stores>
void multiply_routed(OpContext& context, const MoeArgs& args, const float* x, int slots_a_row,
                     const Product<Stores>&... products) {
  const std::vector<WeightMatrix>& first = std::get<0>(std::tie(products...)).matrices;
  const int experts = static_cast<int>(first.size());
  const int rows = weight_rows(first[0]), cols = weight_cols(first[0]);
  const auto each_part = [&](const auto& run) {
    return for_each_part(context, args, experts, x, slots_a_row, cols, run);
  };
  const int parts = each_part([](int, int, const DotInputs&) {});
  context.threads.parallel_for(parts, [&](int begin, int end) {
    each_part([&](int index, int expert, const DotInputs& inputs) {
      if (index < begin || index >= end) return;
      prepare_weight_inputs(context.dots, first[static_cast<std::size_t>(expert)], inputs, 0,
                            inputs.rows.count);
    });
  });
  // Part by part, so that a thread's pieces follow one another in memory and a few parts stay in its caches.
  const int ranges = (rows + range_rows - 1) / range_rows;
  context.threads.parallel_for(parts * ranges, [&](int begin, int end) {
    WorkMeter meter(context.threads);
    each_part([&](int index, int expert, const DotInputs& inputs) {
      const int from = std::max(begin - index * ranges, 0), to = std::min(end - index * ranges, ranges);
      if (from >= to) return;
      const auto multiply = [&](const auto& product) {
        const auto store_slot = [&](int row, int input, const float* totals) {
          product.store(expert, row, inputs.rows.slots[input], totals);
        };
        for_each_run_of_ranges(meter, from, to, inputs, [&](int run_begin, int run_end) {
          multiply_weight_rows(context.dots, product.matrices[static_cast<std::size_t>(expert)],
                               run_begin * range_rows, std::min(run_end * range_rows, rows), inputs,
                               TotalsSink(store_slot));
        });
      };
      (multiply(products), ...);
    });
  });
}

// h of gate and up as rows of one matrix.
void multiply_pairs(OpContext& context, const MoeWeights& weights, const MoeArgs& args) {
  static_assert(tile_rows % 2 == 0, "a gate and its up projection lie in one tile");
  const int width = weights.width_rows();
  const std::int64_t stride = weights.gate_up_bias_stride > 0 ? weights.gate_up_bias_stride : 2 * width;
  const bool in_one = weights.gate_up_bias != nullptr && weights.unit == gpt_oss_unit(weights.unit.limit);
  const auto store = [&](int expert, int row, int slot, const float* totals) {
    const Bf16* bias =
        weights.gate_up_bias == nullptr ? nullptr : weights.gate_up_bias + expert * stride + row;
    float* h = args.activations + static_cast<std::int64_t>(slot) * width + row / 2;
    const int pairs = std::min(tile_rows / 2, width - row / 2);
    if (in_one)
      return context.rows.swiglu(totals, bias, weights.unit.limit, context.rounds_to_bf16(), pairs, h);
    float gate[tile_rows / 2], up[tile_rows / 2];
    for (int i = 0; i < pairs; ++i) {
      gate[i] = totals[2 * i] + (bias == nullptr ? 0.0f : bias[2 * i].to_float());
      up[i] = totals[2 * i + 1] + (bias == nullptr ? 0.0f : bias[2 * i + 1].to_float());
    }
    context.rows.gate(gate, up, weights.unit, context.rounds_to_bf16(), pairs, h);
  };
  multiply_routed(context, args, args.x, args.top_k, Product<decltype(store)>{weights.gate_up, store});
}

// The same of two matrices: a range's gates wait in h for its up projections.
void multiply_halves(OpContext& context, const MoeWeights& weights, const MoeArgs& args) {
  const int width = weights.width_rows();
  const std::int64_t stride = weights.gate_up_bias_stride > 0 ? weights.gate_up_bias_stride : 2 * width;
  const auto h_of = [&](int row, int slot) {
    return args.activations + static_cast<std::int64_t>(slot) * width + row;
  };
  const auto with_bias = [&](int expert, int row, int which, const float* totals, int count, float* to) {
    if (weights.gate_up_bias == nullptr) {
      std::copy_n(totals, count, to);
      return;
    }
    const Bf16* bias = weights.gate_up_bias + expert * stride + std::int64_t{2} * row + which;
    for (int r = 0; r < count; ++r) to[r] = totals[r] + bias[2 * r].to_float();
  };
  const auto store_gate = [&](int expert, int row, int slot, const float* totals) {
    with_bias(expert, row, 0, totals, std::min(tile_rows, width - row), h_of(row, slot));
  };
  const auto store_up = [&](int expert, int row, int slot, const float* totals) {
    const int count = std::min(tile_rows, width - row);
    float up[tile_rows];
    with_bias(expert, row, 1, totals, count, up);
    float* h = h_of(row, slot);
    context.rows.gate(h, up, weights.unit, context.rounds_to_bf16(), count, h);
  };
  multiply_routed(context, args, args.x, args.top_k, Product<decltype(store_gate)>{weights.gate, store_gate},
                  Product<decltype(store_up)>{weights.up, store_up});
}

}  // namespace

std::size_t moe_workspace_bytes(int slots, int experts, int inputs) {
  // Each expert that is used may leave its last group short.
  return prepared_bytes(inputs, slots + (input_group - 1) * std::min(slots, experts));
}

void expert_activations(OpContext& context, const MoeWeights& weights, const MoeArgs& args) {
  group_by_expert(args, weights.experts());
  if (weights.experts() == 0) return;
  NIBBLE_CHECK(weights.gate_up.empty() != weights.gate.empty(), "gate and up are in one matrix or in two");
  NIBBLE_CHECK(args.workspace.size() >=
               moe_workspace_bytes(args.rows * args.top_k, weights.experts(), weights.hidden()));
  weights.gate.empty() ? multiply_pairs(context, weights, args) : multiply_halves(context, weights, args);
}

void expert_products(OpContext& context, const MoeWeights& weights, const MoeArgs& args) {
  if (weights.experts() == 0) return;
  NIBBLE_CHECK(args.workspace.size() >=
               moe_workspace_bytes(args.rows * args.top_k, weights.experts(), weights.width()));
  const int rows = weights.hidden_rows();
  const std::int64_t stride = weights.down_bias_stride > 0 ? weights.down_bias_stride : rows;
  const auto store_down = [&](int expert, int row, int slot, const float* totals) {
    float* y = args.products + static_cast<std::int64_t>(slot) * rows + row;
    const int count = std::min(tile_rows, rows - row);
    if (weights.down_bias == nullptr) {
      std::copy_n(totals, count, y);
      return;
    }
    const Bf16* bias = weights.down_bias + expert * stride + row;
    for (int r = 0; r < count; ++r) y[r] = totals[r] + bias[r].to_float();
  };
  multiply_routed(context, args, args.activations, 1,
                  Product<decltype(store_down)>{weights.down, store_down});
}

void sum_choices(OpContext& context, const MoeArgs& args, int width) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* out = args.out + static_cast<std::int64_t>(row) * width;
      const float* weight = args.expert_weights + static_cast<std::int64_t>(row) * args.top_k;
      const float* y = args.products + static_cast<std::int64_t>(row) * args.top_k * width;
      for (int i = 0; i < width; ++i) out[i] = weight[0] * y[i];
      for (int choice = 1; choice < args.top_k; ++choice) {
        y += width;
        for (int i = 0; i < width; ++i) out[i] += weight[choice] * y[i];
      }
    }
  });
}

void moe(OpContext& context, const MoeWeights& weights, const MoeArgs& args) {
  NIBBLE_CHECK(weights.width_rows() == weights.width() && weights.hidden_rows() == weights.hidden(),
               "parts of experts take the three steps");
  expert_activations(context, weights, args);
  expert_products(context, weights, args);
  sum_choices(context, args, weights.hidden());
}

}  // namespace nibble
