#include <algorithm>
#include <cstdint>

#include "ops/fixed_math.h"
#include "ops/output_gate/output_gate.h"

namespace nibble {

void split_gates(OpContext& context, const SplitGatesArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (std::int64_t head = std::int64_t{begin} * args.heads; head < std::int64_t{end} * args.heads;
         ++head) {
      const float* from = args.projected + 2 * head * args.head_dim;
      std::copy_n(from, args.head_dim, args.q + head * args.head_dim);
      std::copy_n(from + args.head_dim, args.head_dim, args.gates + head * args.head_dim);
    }
  });
}

void gate_outputs(OpContext& context, const GateOutputsArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (std::int64_t i = std::int64_t{begin} * args.width; i < std::int64_t{end} * args.width; ++i)
      args.out[i] = context.activation(args.out[i] * (1.0f / (1.0f + fixed_exp_branchless(-args.gates[i]))));
  });
}

}  // namespace nibble
