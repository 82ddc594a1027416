// What the kernels for many rows share, whose products are a warpgroup's: a thread's two rows of sums.
#pragma once

#include "ops/attention/cuda/attention_steps.cuh"

namespace nibble {

// For a thread's two rows, in lanes.
struct RowScalars {
  float m[2], l[2];
};

__device__ __forceinline__ bool begins_split(int step) {
  return attention_split_begin(attention_split_of(step)) == step;
}

// Products of both rows with powers of two, which are mostly 1.
template <int count>
__device__ __forceinline__ void scale(float (&sums)[count], const float (&by)[2]) {
  if (__ballot_sync(0xffffffffu, by[0] != 1.0f || by[1] != 1.0f) == 0) return;
#pragma unroll
  for (int i = 0; i < count; ++i) sums[i] = __fmul_rn(sums[i], by[i / 2 % 2]);
}

// A split into its query's total.
template <int count>
__device__ __forceinline__ void take_in_split(float (&total)[count], RowScalars& scalars,
                                              const float (&o)[count], const RowScalars& split) {
  float keep[2], add[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Scaling scaling = scaling_of(scalars.m[row], split.m[row]);
    keep[row] = scaling.keep;
    add[row] = scaling.add;
    scalars.m[row] = scaling.m;
    scalars.l[row] = take_in(scalars.l[row], split.l[row], scaling);
  }
  scale(total, keep);
#pragma unroll
  for (int i = 0; i < count; ++i) total[i] = fmaf(o[i], add[i / 2 % 2], total[i]);
}

}  // namespace nibble
