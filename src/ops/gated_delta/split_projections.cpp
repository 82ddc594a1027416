#include <algorithm>

#include "ops/gated_delta/gated_delta.h"

namespace nibble {

void split_by_key_head(OpContext& context, const SplitByKeyHeadArgs& args) {
  const DeltaShape& shape = args.shape;
  const int served = shape.value_heads / shape.key_heads, values = served * shape.value_dim;
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float *q = args.qkv + row * shape.channels(), *k = q + shape.keys(), *v = k + shape.keys();
      for (int head = 0; head < shape.key_heads; ++head) {
        const float* from = args.qkv_z + (row * shape.key_heads + head) * (2 * shape.key_dim + 2 * values);
        std::copy_n(from, shape.key_dim, q + head * shape.key_dim);
        std::copy_n(from + shape.key_dim, shape.key_dim, k + head * shape.key_dim);
        std::copy_n(from + 2 * shape.key_dim, values, v + head * values);
        std::copy_n(from + 2 * shape.key_dim + values, values, args.z + row * shape.values() + head * values);
        const float* gates = args.b_a + (row * shape.key_heads + head) * 2 * served;
        std::copy_n(gates, served, args.b + row * shape.value_heads + head * served);
        std::copy_n(gates + served, served, args.a + row * shape.value_heads + head * served);
      }
    }
  });
}

}  // namespace nibble
