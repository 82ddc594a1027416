#include <algorithm>

#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/linear/dot_tile.h"
#include "ops/moe/moe.h"

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

// Every tile of rows of every used expert's matrix against the inputs routed to it:
// input(slot) gives the vector, store(expert, row, slot, totals) takes tile_rows products.
template <class Input, class Store>
void multiply_routed(OpContext& context, const std::vector<Mxfp4Checkpoint>& matrices,
                     const MoeMxfp4Args& args, Input input, Store store) {
  const int rows = static_cast<int>(matrices[0].rows);
  context.threads.parallel_for((rows + tile_rows - 1) / tile_rows, [&](int tile_begin, int tile_end) {
    const float* inputs[max_tile_inputs];
    TileTotals totals[max_tile_inputs];
    for (std::size_t expert = 0; expert < matrices.size(); ++expert) {
      for (int first = args.offsets[expert]; first < args.offsets[expert + 1]; first += max_tile_inputs) {
        const int count = std::min(max_tile_inputs, args.offsets[expert + 1] - first);
        for (int i = 0; i < count; ++i) inputs[i] = input(args.slots[first + i]);
        for (int row = tile_begin * tile_rows; row < std::min(tile_end * tile_rows, rows); row += tile_rows) {
          context.dots.mxfp4(matrices[expert], row, std::span(inputs, static_cast<std::size_t>(count)),
                             context.activations, totals);
          for (int i = 0; i < count; ++i)
            store(static_cast<int>(expert), row, args.slots[first + i], totals[i]);
        }
      }
    }
  });
}

}  // namespace

float clamped_swiglu(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate * fixed_sigmoid(1.702f * gate) * (up + 1.0f);
}

void moe_mxfp4(OpContext& context, const MoeMxfp4Weights& weights, const MoeMxfp4Args& args) {
  const int experts = static_cast<int>(weights.gate_up.size());
  const int hidden = static_cast<int>(weights.down[0].rows);
  const int intermediate = static_cast<int>(weights.down[0].cols);
  static_assert(tile_rows % 2 == 0, "a gate and its up projection lie in one tile");
  group_by_expert(args, experts);

  multiply_routed(
      context, weights.gate_up, args,
      [&](int slot) { return args.x + static_cast<std::int64_t>(slot / args.top_k) * hidden; },
      [&](int expert, int row, int slot, const float* totals) {
        const Bf16* bias = weights.gate_up_bias + static_cast<std::int64_t>(expert) * 2 * intermediate + row;
        float* h = args.activations + static_cast<std::int64_t>(slot) * intermediate + row / 2;
        const int rows = std::min(tile_rows, 2 * intermediate - row);
        for (int r = 0; r < rows; r += 2) {
          h[r / 2] = context.activation(clamped_swiglu(
              totals[r] + bias[r].to_float(), totals[r + 1] + bias[r + 1].to_float(), weights.swiglu_limit));
        }
      });

  multiply_routed(
      context, weights.down, args,
      [&](int slot) { return args.activations + static_cast<std::int64_t>(slot) * intermediate; },
      [&](int expert, int row, int slot, const float* totals) {
        const Bf16* bias = weights.down_bias + static_cast<std::int64_t>(expert) * hidden + row;
        float* y = args.products + static_cast<std::int64_t>(slot) * hidden + row;
        const int rows = std::min(tile_rows, hidden - row);
        for (int r = 0; r < rows; ++r) y[r] = totals[r] + bias[r].to_float();
      });

  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* out = args.out + static_cast<std::int64_t>(row) * hidden;
      for (int choice = 0; choice < args.top_k; ++choice) {
        const int slot = row * args.top_k + choice;
        const float weight = args.expert_weights[slot];
        const float* y = args.products + static_cast<std::int64_t>(slot) * hidden;
        for (int i = 0; i < hidden; ++i) out[i] = choice == 0 ? weight * y[i] : out[i] + weight * y[i];
      }
    }
  });
}

}  // namespace nibble
