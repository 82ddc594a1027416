#include <cstdint>

#include "ops/gated_mlp/gated_mlp.h"
#include "ops/linear/linear.h"
#include "ops/row/row_kernels.h"

namespace nibble {

void gated_mlp(OpContext& context, const GatedMlpWeights& weights, const GatedMlpArgs& args) {
  gated_mlp_inner(context, weights, args);
  gated_mlp_outer(context, weights, args.gate, args);
}

void gated_mlp_inner(OpContext& context, const GatedMlpWeights& weights, const GatedMlpArgs& args) {
  const auto product = [&](const float* x, const WeightMatrix& weight, float* y) {
    linear(context, {.x = x, .rows = args.rows, .weight = weight, .y = y, .workspace = args.workspace});
  };
  product(args.x, weights.gate, args.gate);
  product(args.x, weights.up, args.up);
  const int width = weights.width();
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* gate = args.gate + std::int64_t{row} * width;
      context.rows.gate(gate, args.up + std::int64_t{row} * width, weights.unit, context.rounds_to_bf16(),
                        width, gate);
    }
  });
}

void gated_mlp_outer(OpContext& context, const GatedMlpWeights& weights, const float* inner,
                     const GatedMlpArgs& args) {
  linear(context,
         {.x = inner, .rows = args.rows, .weight = weights.down, .y = args.y, .workspace = args.workspace});
}

void add_shared(OpContext& context, const AddSharedArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float share = args.logits == nullptr ? 1.0f : 1.0f / (1.0f + fixed_exp(-args.logits[row]));
      const float* shared = args.shared + std::int64_t{row} * args.hidden;
      float* sum = args.sum + std::int64_t{row} * args.hidden;
      for (int i = 0; i < args.hidden; ++i) sum[i] += share * shared[i];
    }
  });
}

}  // namespace nibble
