// The scalar functions and small loops of the gated delta rule, with bits of their own (ops/fixed_math.h).
#pragma once

#include "ops/fixed_math.h"

namespace nibble {

constexpr float delta_sigmoid(float x) { return 1.0f / (1.0f + fixed_exp_branchless(-x)); }
constexpr float delta_silu(float x) { return x * delta_sigmoid(x); }

// ln(1 + e^x); x itself above 20, as transformers has it.
constexpr double softplus(double x) {
  if (x > 20) return x;
  if (x < -700) return 0;
  const double power = fixed_exp_double(x);
  // Below e^-12 the logarithm's absolute error would be a large part of its value.
  if (x < -12) return power - power * power / 2;
  return fixed_log(1 + power);
}

// x . y: lane l takes the elements l, l + 16, ... in order, then the lanes are added as a tree.
inline float lane_product(const float* x, const float* y, int n) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  }
  for (int lane = 0; i + lane < n; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace nibble
