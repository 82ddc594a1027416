// The activation of an expert for one pair, its gate and its up projection. NaN stays NaN.
//
//   gate = min(gate, limit); up = clamp(up, -limit, limit); gate * sigmoid(alpha gate) * (up + offset)
#pragma once

#include <limits>

#include "formats/bf16.h"
#include "ops/fixed_math.h"

namespace nibble {

struct GatedUnit {
  float alpha = 1.0f;
  float limit = std::numeric_limits<float>::infinity();
  float offset = 0.0f;
  bool operator==(const GatedUnit&) const = default;
};

// silu(gate) * up.
inline constexpr GatedUnit silu_unit{};
// The same of clamped values.
constexpr GatedUnit clamped_silu_unit(float limit) { return {.limit = limit}; }
// gpt-oss's (clamped_swiglu.h).
constexpr GatedUnit gpt_oss_unit(float limit) { return {.alpha = 1.702f, .limit = limit, .offset = 1.0f}; }

constexpr float gated(float gate, float up, const GatedUnit& unit) {
  gate = gate > unit.limit ? unit.limit : gate;
  up = up > unit.limit ? unit.limit : up < -unit.limit ? -unit.limit : up;
  const float sigmoid = 1.0f / (1.0f + fixed_exp_branchless(-(unit.alpha * gate)));
  return gate * sigmoid * (up + unit.offset);
}

}  // namespace nibble
