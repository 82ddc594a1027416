// add_rms_norm: the residual stream takes in a block's output, and the next block's input is its norm.
//
//   residual += delta;  out = residual * (1 / sqrt(mean(residual^2) + eps)) * weight
//
// all in float32, rounded once a step as written (gpt-oss multiplies by the weight before any rounding to a
// narrower type). A zero-centred weight (Qwen3-Next) stands for 1 + weight. The sum of squares is taken as
// ops/row/row_kernels.h says; it depends on the width alone.
#pragma once

#include "formats/bf16.h"
#include "ops/op_context.h"

namespace nibble {

struct AddRmsNormArgs {
  float* residual = nullptr;     // [rows, hidden], updated
  const float* delta = nullptr;  // [rows, hidden]; null: nothing is added
  const Bf16* weight = nullptr;  // [hidden]
  float* out = nullptr;          // [rows, hidden]
  int rows = 0;
  int hidden = 0;
  float eps = 0;
  bool zero_centred = false;
};

void add_rms_norm(OpContext& context, const AddRmsNormArgs& args);

// Each head by itself, in place and left in float32: what is rotated next is rounded when it is used.
//
//   x = x * (1 / sqrt(mean(x^2) + eps)) * weight
struct HeadRmsNormArgs {
  float* x = nullptr;            // [rows, heads, head_dim], updated
  const Bf16* weight = nullptr;  // [head_dim]
  int rows = 0;
  int heads = 0;
  int head_dim = 0;
  float eps = 0;
  bool zero_centred = false;
};

void head_rms_norm(OpContext& context, const HeadRmsNormArgs& args);

}  // namespace nibble
