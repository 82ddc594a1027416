// rope: rotary position embedding in halves, in place: dimension i turns with i + turned / 2, where `turned`
// is a head's width or, of a head that is turned in part, that of its first dimensions.
//
//   angle = position * inv_freq[i] in float32;  (a, b) -> (a cos - b sin, b cos + a sin)
//
// cos and sin are taken in double precision (fixed_sin_cos), rounded to float32 and multiplied by the
// concentration.
#pragma once

#include <span>
#include <vector>

#include "ops/op_context.h"

namespace nibble {

// How fast each pair of dimensions turns, and the factor on both cos and sin.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float concentration = 1.0f;
};

struct YarnParameters {
  double theta = 150000.0;
  double factor = 32.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int original_max_position = 4096;
  bool truncate = true;        // floor and ceil of the ramp's ends; gpt-oss says false
  double concentration = 1.0;  // on both cos and sin, so squared on the scores
};

RopeFrequencies default_rope(int head_dim, double theta);
// YaRN: dimensions that turn often keep their frequency, those that turn less than once in the original
// context are slowed by `factor`, with a linear ramp between.
RopeFrequencies yarn_rope(int head_dim, const YarnParameters& yarn);

// cos and sin of each row, computed once a step and used by every layer.
void rope_angles(OpContext& context, const RopeFrequencies& frequencies, std::span<const int> positions,
                 float* cos,   // [positions, head_dim / 2]
                 float* sin);  // [positions, head_dim / 2]

struct RopeArgs {
  float* x = nullptr;          // [rows, heads, head_dim], rotated in place
  const float* cos = nullptr;  // [rows, turned / 2]
  const float* sin = nullptr;
  int rows = 0;
  int heads = 0;
  int head_dim = 0;
  int turned = 0;  // of a head's dimensions; 0: all
};

void rope(OpContext& context, const RopeArgs& args);

}  // namespace nibble
