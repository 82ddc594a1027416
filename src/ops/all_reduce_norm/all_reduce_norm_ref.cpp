#include <cmath>
#include <cstddef>
#include <vector>

#include "comm/leaves.h"
#include "ops/all_reduce_norm/all_reduce_norm.h"

namespace nibble {

// The sum of squares in the sixteen lanes of ops/row/row_kernels.h.
void all_reduce_norm_ref(const OpContext& context, std::span<const float* const> parts,
                         const AllReduceNormArgs& args) {
  constexpr int lanes = 16;
  const std::size_t hidden = static_cast<std::size_t>(args.hidden);
  std::vector<float> x(hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(args.rows); ++row) {
    float squares[lanes] = {};
    for (std::size_t i = 0; i < hidden; ++i) {
      const std::size_t at = row * hidden + i;
      x[i] = tree_sum(static_cast<int>(parts.size()),
                      [&](int rank) { return parts[static_cast<std::size_t>(rank)][at]; });
      if (args.residual != nullptr) x[i] = args.residual[at] += x[i];
      squares[i % lanes] += x[i] * x[i];
    }
    if (args.weight == nullptr) continue;
    for (int apart = lanes / 2; apart > 0; apart /= 2) {
      for (int lane = 0; lane < apart; ++lane) squares[lane] += squares[lane + apart];
    }
    const float mean = squares[0] / static_cast<float>(args.hidden);
    const float scale = 1.0f / std::sqrt(mean + args.eps);
    for (std::size_t i = 0; i < hidden; ++i) {
      const float weight = args.weight[i].to_float();
      const float value = x[i] * scale * (args.weight_less_one ? 1.0f + weight : weight);
      args.out[row * hidden + i] = context.activation(value);
    }
  }
}

}  // namespace nibble
