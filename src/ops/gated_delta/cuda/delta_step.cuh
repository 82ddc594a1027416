// What the kernels of the gated delta rule share: where things lie, and their scalar functions.
#pragma once

#include "ops/gated_delta/cuda/gated_delta_cuda.h"
#include "ops/ptx/fast_math.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

// As kernels take it.
struct DeltaKernelArgs {
  int key_heads, value_heads, taps, kept_inputs, channels;
  int served;  // heads of values by one of keys
  DeltaStepCuda step;
  DeltaColumns columns;
  const float *projected, *gates;
  int projected_stride, gates_stride;
  const float *convolution, *rate, *bias, *norm;
  float eps;
  float* qkv;
  double* decays;
  float *betas, *products, *mixed;
  std::uint8_t* out;
  // Of slot 0; the others follow, so many bytes apart.
  DeltaState slots, snapshots;
  std::int64_t slot_bytes, snapshot_bytes;
  std::uint32_t* stuck;  // GatedDeltaCudaArgs's

  __device__ int keys(int key_dim) const { return key_heads * key_dim; }
};

// A part of slot `index`.
template <class T>
__device__ __forceinline__ T* in_slot(T* of_first, std::int64_t bytes, int index) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uint8_t*>(of_first) + index * bytes);
}

// A head of values: so many behind the first that a head of keys serves.
struct ValueHead {
  int key_head, within;

  __device__ static ValueHead at(const DeltaKernelArgs& args, int index) {
    const int key_head = index / args.served;
    return {key_head, index - key_head * args.served};
  }
  __device__ int index(const DeltaKernelArgs& args) const { return key_head * args.served + within; }
};

__device__ __forceinline__ int column_of(const HeadColumns& part, const ValueHead& head) {
  return part.first + head.key_head * part.a_key_head + head.within * part.a_value_head;
}

// Within a few units in the last place.
__device__ __forceinline__ float delta_sigmoid_of(float x) {
  return ptx::reciprocal_fast(__fadd_rn(1.0f, ptx::exp2_fast(__fmul_rn(x, -1.44269504f))));
}
__device__ __forceinline__ float delta_silu_of(float x) { return __fmul_rn(x, delta_sigmoid_of(x)); }
// ln(1 + e^x); x itself above 20, as transformers has it.
__device__ __forceinline__ double softplus_of(double x) { return x > 20 ? x : log1p(exp(x)); }
// e^difference, of sums of g, which is at most 0.
__device__ __forceinline__ float decay_of(double difference) {
  return ptx::exp2_fast(static_cast<float>(difference * 1.4426950408889634));
}

__device__ __forceinline__ float sum_of_lanes(float own) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) own = __fadd_rn(own, __shfl_xor_sync(0xffffffffu, own, apart));
  return own;
}

void launch_delta_inputs(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);
void launch_delta_rows(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);

// Calls run.template operator()<key_dim, value_dim>() for the shape's dimensions.
template <class Run>
void with_delta_dims(const DeltaShape& shape, const Run& run) {
  if (shape.key_dim == 128) {
    run.template operator()<128, 128>();
  } else if (shape.key_dim == 32) {
    run.template operator()<32, 32>();
  } else {
    run.template operator()<16, 24>();
  }
}

}  // namespace nibble
