// The expert layer of moe.h in double precision, for weights of any format: the oracle of the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "formats/bf16.h"
#include "ops/row/gated_unit.h"

namespace nibble {

struct MoeReference {
  int top_k = 0, hidden = 0, intermediate = 0;
  const Bf16* gate_up_bias = nullptr;  // [experts, 2 * intermediate]; null: without
  const Bf16* down_bias = nullptr;     // [experts, hidden]; null: without
  GatedUnit unit = gpt_oss_unit(7.0f);
  bool bf16_h = false;  // h is rounded to bfloat16
};

// gate_up(expert, row, x) and down(expert, row, h) are products of a matrix's row with x [hidden] and h
// [intermediate]. x: [rows, hidden]; ids, weights: [rows, top_k], an id of -1 stands for none.
template <class GateUp, class Down>
std::vector<double> moe_reference(ThreadPool& threads, const MoeReference& layer, const std::vector<float>& x,
                                  const std::vector<std::int32_t>& ids, const std::vector<float>& weights,
                                  const GateUp& gate_up, const Down& down) {
  const int slots = static_cast<int>(ids.size()), hidden = layer.hidden, width = layer.intermediate;
  const auto bias_of = [](const Bf16* biases, int expert, int rows, int row) {
    return biases == nullptr ? 0.0
                             : double{biases[static_cast<std::ptrdiff_t>(expert) * rows + row].to_float()};
  };
  std::vector<double> products(ids.size() * static_cast<std::size_t>(hidden)), out(x.size());
  threads.parallel_for(slots, [&](int begin, int end) {
    for (int slot = begin; slot < end; ++slot) {
      const int expert = ids[static_cast<std::size_t>(slot)];
      if (expert < 0) continue;
      std::vector<float> h;
      for (int i = 0; i < width; ++i) {
        const auto with_bias = [&](int row) {
          return gate_up(expert, row, x.data() + static_cast<std::ptrdiff_t>(slot / layer.top_k) * hidden) +
                 bias_of(layer.gate_up_bias, expert, 2 * width, row);
        };
        const double limit = layer.unit.limit;
        const double gate = std::min(with_bias(2 * i), limit),
                     up = std::clamp(with_bias(2 * i + 1), -limit, limit);
        const float value = static_cast<float>(gate / (1 + std::exp(-double{layer.unit.alpha} * gate)) *
                                               (up + layer.unit.offset));
        h.push_back(layer.bf16_h ? Bf16::from_float(value).to_float() : value);
      }
      for (int row = 0; row < hidden; ++row) {
        products[static_cast<std::size_t>(slot * hidden + row)] =
            down(expert, row, h.data()) + bias_of(layer.down_bias, expert, hidden, row);
      }
    }
  });
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t width_of_row = static_cast<std::size_t>(hidden), row = i / width_of_row;
    for (int choice = 0; choice < layer.top_k; ++choice) {
      const std::size_t slot = row * static_cast<std::size_t>(layer.top_k) + static_cast<std::size_t>(choice);
      if (ids[slot] >= 0) out[i] += weights[slot] * products[slot * width_of_row + i % width_of_row];
    }
  }
  return out;
}

}  // namespace nibble
