// The activation of gpt-oss's experts for one pair: a gate times its sigmoid, times an up projection that one
// is added to, both clamped. NaN stays NaN.
#pragma once

#include "ops/fixed_math.h"

namespace nibble {

inline constexpr float swiglu_alpha = 1.702f;

constexpr float clamped_swiglu(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  const float sigmoid = 1.0f / (1.0f + fixed_exp_branchless(-(swiglu_alpha * gate)));
  return gate * sigmoid * (up + 1.0f);
}

}  // namespace nibble
