#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "ops/fixed_math.h"
#include "ops/rope/rope.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// theta^(-2 i / head_dim)
double inverse_frequency(double theta, int i, int head_dim) {
  return fixed_exp_double(-2.0 * i / head_dim * fixed_log(theta));
}

}  // namespace

RopeFrequencies default_rope(int head_dim, double theta) {
  RopeFrequencies rope;
  for (int i = 0; i < head_dim / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(inverse_frequency(theta, i, head_dim)));
  }
  return rope;
}

RopeFrequencies yarn_rope(int head_dim, const YarnParameters& yarn) {
  // The (fractional) dimension that turns `rotations` times within the original context.
  const auto dimension_of = [&](double rotations) {
    return head_dim * fixed_log(yarn.original_max_position / (rotations * 2 * std::numbers::pi)) /
           (2 * fixed_log(yarn.theta));
  };
  double low = dimension_of(yarn.beta_fast);
  double high = dimension_of(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;

  RopeFrequencies rope;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double fast = inverse_frequency(yarn.theta, i, head_dim);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    rope.inv_freq.push_back(static_cast<float>(fast / yarn.factor * ramp + fast * (1.0 - ramp)));
  }
  rope.concentration = static_cast<float>(yarn.concentration);
  return rope;
}

void rope_angles(OpContext& context, const RopeFrequencies& frequencies, std::span<const int> positions,
                 float* cos, float* sin) {
  const int half = static_cast<int>(frequencies.inv_freq.size());
  context.threads.parallel_for(static_cast<int>(positions.size()), [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float position = static_cast<float>(positions[static_cast<std::size_t>(row)]);
      for (int i = 0; i < half; ++i) {
        const double angle = position * frequencies.inv_freq[static_cast<std::size_t>(i)];
        const std::int64_t at = static_cast<std::int64_t>(row) * half + i;
        const SinCos turn = fixed_sin_cos(angle);
        cos[at] = static_cast<float>(turn.cos) * frequencies.concentration;
        sin[at] = static_cast<float>(turn.sin) * frequencies.concentration;
      }
    }
  });
}

void rope(OpContext& context, const RopeArgs& args) {
  const int half = (args.turned > 0 ? args.turned : args.head_dim) / 2;
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float* cos = args.cos + static_cast<std::int64_t>(row) * half;
      const float* sin = args.sin + static_cast<std::int64_t>(row) * half;
      for (int head = 0; head < args.heads; ++head) {
        float* x = args.x + (static_cast<std::int64_t>(row) * args.heads + head) * args.head_dim;
        context.rows.rotate(x, cos, sin, half);
      }
    }
  });
}

}  // namespace nibble
