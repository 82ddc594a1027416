// What the expert layer's kernels for few and for many tokens share.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {

// As clamped_swiglu (ops/moe/moe.h), with the device's exponential.
__device__ __forceinline__ float swiglu_on_device(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;  // keeps a NaN, which fminf would not
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate * __fdividef(1.0f, 1.0f + __expf(-1.702f * gate)) * (up + 1.0f);
}

// Whether matrices and activations fit each other and the kernels; a refusal names what does not.
Status check_moe_shapes(const MoeCudaWeights& weights, const MoeCudaArgs& args);

// out[token] = sum of expert_weights x workspace.products in order of the top-k. It also resets
// workspace.arrived.
void launch_moe_combine(const MoeCudaArgs& args, int hidden, cudaStream_t stream);

}  // namespace nibble
