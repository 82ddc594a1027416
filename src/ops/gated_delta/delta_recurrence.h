// The gated delta rule as gated_delta.h states it, one position after the other, in the precision of Real:
// what the tests hold the op against.
#pragma once

#include <cmath>
#include <vector>

#include "ops/gated_delta/gated_delta.h"

namespace nibble {

// One sequence from position 0. qkv: [rows, channels], not normalised; b, a: [rows, value_heads].
template <class Real>
std::vector<Real> delta_recurrence(const DeltaShape& shape, const DeltaGates& gates,
                                   const std::vector<float>& qkv, const std::vector<float>& b,
                                   const std::vector<float>& a) {
  const int rows = static_cast<int>(b.size()) / shape.value_heads;
  std::vector<Real> out(static_cast<std::size_t>(rows * shape.values()));
  const auto unit = [&](const float* x) {
    Real squares = 0;
    for (int i = 0; i < shape.key_dim; ++i) squares += Real{x[i]} * Real{x[i]};
    std::vector<Real> y;
    for (int i = 0; i < shape.key_dim; ++i) y.push_back(Real{x[i]} / std::sqrt(squares + Real(1e-6)));
    return y;
  };
  for (int head = 0; head < shape.value_heads; ++head) {
    const std::size_t value_dim = static_cast<std::size_t>(shape.value_dim);
    std::vector<Real> state(static_cast<std::size_t>(shape.key_dim) * value_dim);
    for (int row = 0; row < rows; ++row) {
      const float* x = qkv.data() + std::ptrdiff_t{row} * shape.channels();
      const float* v = x + 2 * shape.keys() + head * shape.value_dim;
      const std::vector<Real> q = unit(x + shape.key_head_of(head) * shape.key_dim);
      const std::vector<Real> k = unit(x + shape.keys() + shape.key_head_of(head) * shape.key_dim);
      const std::size_t gate = static_cast<std::size_t>(row * shape.value_heads + head);
      const Real beta = 1 / (1 + std::exp(-Real{b[gate]}));
      const Real pace = Real{a[gate]} + Real{gates.bias[head]};
      const Real decay = std::exp(-Real{gates.rate[head]} * (pace > 20 ? pace : std::log1p(std::exp(pace))));
      for (Real& value : state) value *= decay;
      for (std::size_t c = 0; c < value_dim; ++c) {
        Real known = 0, read = 0;
        for (std::size_t d = 0; d < k.size(); ++d) known += state[d * value_dim + c] * k[d];
        const Real update = beta * (Real{v[c]} - known);
        for (std::size_t d = 0; d < k.size(); ++d) {
          state[d * value_dim + c] += k[d] * update;
          read += state[d * value_dim + c] * q[d];
        }
        out[static_cast<std::size_t>(row * shape.values() + head * shape.value_dim) + c] =
            read / std::sqrt(Real(shape.key_dim));
      }
    }
  }
  return out;
}

}  // namespace nibble
