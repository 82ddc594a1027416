// What the expert layer's kernels for few and for many tokens share.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_taken.h"

namespace nibble {

// As gated (ops/row/gated_unit.h), with the device's exponential.
__device__ __forceinline__ float gated_on_device(float gate, float up, const GatedUnit& unit) {
  gate = gate > unit.limit ? unit.limit : gate;  // keeps a NaN, which fminf would not
  up = up > unit.limit ? unit.limit : up;
  up = up < -unit.limit ? -unit.limit : up;  // two selections, where one expression would branch
  return gate * __fdividef(1.0f, 1.0f + __expf(-unit.alpha * gate)) * (up + unit.offset);
}

// Of a layer with so many experts.
inline MoeTaken taken_of(const MoeCudaShare& share, int experts) {
  const int end = share.end > 0 ? share.end : share.first_expert + experts;
  return {share.first_expert, share.end > 0 ? share.begin : share.first_expert, end, share.turns, share.turn};
}

// A layer's matrices: `experts` of [rows, cols] each; columns come in groups that share a scale.
struct MoeMatrices {
  struct {
    int experts, rows, cols;
  } gate_up, down;
  int scale_group;
};

// Whether matrices and activations fit each other and the kernels; a refusal names what does not.
Status check_moe_shapes(const MoeMatrices& matrices, const MoeCudaArgs& args);
template <class Granules>
Status check_moe_shapes(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args) {
  const auto &up = weights.gate_up, &down = weights.down;
  return check_moe_shapes({.gate_up = {up.experts, up.shape.rows, up.shape.cols},
                           .down = {down.experts, down.shape.rows, down.shape.cols},
                           .scale_group = Granules::Layout::scale_group},
                          args);
}

}  // namespace nibble
