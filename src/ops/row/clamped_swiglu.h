// The activation of gpt-oss's experts for one pair: a gate times its sigmoid, times an up projection that one
// is added to, both clamped. NaN stays NaN.
#pragma once

#include "formats/bf16.h"
#include "ops/fixed_math.h"

namespace nibble {

inline constexpr float swiglu_alpha = 1.702f;

constexpr float clamped_swiglu(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  const float sigmoid = 1.0f / (1.0f + fixed_exp_branchless(-(swiglu_alpha * gate)));
  return gate * sigmoid * (up + 1.0f);
}

// Of a pair in the totals of a product, with its biases.
inline float clamped_swiglu(const float* totals, const Bf16* bias, float limit, bool narrow) {
  const float value = clamped_swiglu(totals[0] + bias[0].to_float(), totals[1] + bias[1].to_float(), limit);
  return narrow ? Bf16::from_float(value).to_float() : value;
}

}  // namespace nibble
