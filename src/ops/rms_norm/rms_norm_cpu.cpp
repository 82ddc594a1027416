#include <cmath>
#include <cstdint>

#include "ops/rms_norm/rms_norm.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// out = x * factor * (1 + weight)
void scale_around_one(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float value = x[i] * factor * (1.0f + weight[i].to_float());
    out[i] = narrow ? Bf16::from_float(value).to_float() : value;
  }
}

}  // namespace

void add_rms_norm(OpContext& context, const AddRmsNormArgs& args) {
  const auto scaled = args.zero_centred ? scale_around_one : context.rows.scale;
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const std::int64_t offset = static_cast<std::int64_t>(row) * args.hidden;
      float* x = args.residual + offset;
      float* out = args.out + offset;
      const float* delta = args.delta == nullptr ? nullptr : args.delta + offset;
      const float mean = context.rows.add_and_square(x, delta, args.hidden) / static_cast<float>(args.hidden);
      const float scale = 1.0f / std::sqrt(mean + args.eps);
      scaled(x, scale, args.weight, context.rounds_to_bf16(), args.hidden, out);
    }
  });
}

void head_rms_norm(OpContext& context, const HeadRmsNormArgs& args) {
  const auto scaled = args.zero_centred ? scale_around_one : context.rows.scale;
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int head = begin * args.heads; head < end * args.heads; ++head) {
      float* x = args.x + static_cast<std::int64_t>(head) * args.head_dim;
      const float mean =
          context.rows.add_and_square(x, nullptr, args.head_dim) / static_cast<float>(args.head_dim);
      scaled(x, 1.0f / std::sqrt(mean + args.eps), args.weight, false, args.head_dim, x);
    }
  });
}

}  // namespace nibble
