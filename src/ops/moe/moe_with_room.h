// moe with room of its own, for tests and checks.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/aligned_bytes.h"
#include "ops/moe/moe.h"

namespace nibble {

// x: [rows, hidden]; ids, shares: [rows, top_k].
inline std::vector<float> moe_with_room(OpContext& context, const MoeWeights& weights,
                                        const std::vector<float>& x, const std::vector<std::int32_t>& ids,
                                        const std::vector<float>& shares) {
  const std::size_t hidden = static_cast<std::size_t>(weights.hidden()),
                    width = static_cast<std::size_t>(weights.width()), experts = weights.down.size(),
                    rows = x.size() / hidden, slots = ids.size();
  // NaN, so that an element that is not written is noticed.
  std::vector<float> out(x.size(), NAN), activations(slots * width, NAN), products(slots * hidden, NAN);
  std::vector<std::int32_t> order(slots, -1), offsets(experts + 1, -1);
  AlignedBytes room(moe_workspace_bytes(static_cast<int>(slots), static_cast<int>(experts),
                                        static_cast<int>(std::max(hidden, width))));
  moe(context, weights,
      {.x = x.data(),
       .rows = static_cast<int>(rows),
       .top_k = static_cast<int>(slots / rows),
       .expert_ids = ids.data(),
       .expert_weights = shares.data(),
       .out = out.data(),
       .activations = activations.data(),
       .products = products.data(),
       .slots = order.data(),
       .offsets = offsets.data(),
       .workspace = room.span()});
  return out;
}

}  // namespace nibble
