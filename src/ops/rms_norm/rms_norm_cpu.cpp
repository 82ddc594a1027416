#include <cmath>
#include <cstdint>

#include "ops/rms_norm/rms_norm.h"
#include "ops/row/row_kernels.h"

namespace nibble {

void add_rms_norm(OpContext& context, const AddRmsNormArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const std::int64_t offset = static_cast<std::int64_t>(row) * args.hidden;
      float* x = args.residual + offset;
      float* out = args.out + offset;
      const float* delta = args.delta == nullptr ? nullptr : args.delta + offset;
      const float mean = context.rows.add_and_square(x, delta, args.hidden) / static_cast<float>(args.hidden);
      const float scale = 1.0f / std::sqrt(mean + args.eps);
      context.rows.scale(x, scale, args.weight, context.rounds_to_bf16(), args.hidden, out);
    }
  });
}

void head_rms_norm(OpContext& context, const HeadRmsNormArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int head = begin * args.heads; head < end * args.heads; ++head) {
      float* x = args.x + static_cast<std::int64_t>(head) * args.head_dim;
      const float mean =
          context.rows.add_and_square(x, nullptr, args.head_dim) / static_cast<float>(args.head_dim);
      context.rows.scale(x, 1.0f / std::sqrt(mean + args.eps), args.weight, false, args.head_dim, x);
    }
  });
}

}  // namespace nibble
