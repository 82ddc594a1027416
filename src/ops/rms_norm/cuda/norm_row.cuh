// Parts of a norm over a row by 256 threads, for the kernels that have one in them. For the order of
// additions see rms_norm_cuda.h.
#pragma once

#include "ops/cuda/expert_sum.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble {

inline constexpr int norm_threads = 256;
inline constexpr int norm_warps = norm_threads / 32;
inline constexpr int norm_pass_columns = norm_threads * 8;  // that the threads take at a time, 8 each
inline constexpr int norm_passes = 2;                       // whose loads are under way together
inline constexpr int choices_at_once = 4;                   // and of so many experts

struct Eight {
  float4 low, high;
};
// Past the first-level cache, where a rehearsal may have left what came before.
__device__ __forceinline__ Eight load_eight(const float* at) {
  return {__ldcg(reinterpret_cast<const float4*>(at)), __ldcg(reinterpret_cast<const float4*>(at + 4))};
}
__device__ __forceinline__ Eight eight_of_shared(const float* at) {
  return {*reinterpret_cast<const float4*>(at), *reinterpret_cast<const float4*>(at + 4)};
}
__device__ __forceinline__ void store_eight(float* at, const Eight& eight) {
  *reinterpret_cast<float4*>(at) = eight.low;
  *reinterpret_cast<float4*>(at + 4) = eight.high;
}
__device__ __forceinline__ Eight add(const Eight& a, const Eight& b) {
  return {add(a.low, b.low), add(a.high, b.high)};
}
__device__ __forceinline__ Eight times(const Eight& a, float b) {
  return {times(a.low, b), times(a.high, b)};
}
__device__ __forceinline__ float squares(float sum, const float4& a) {
  sum = __fadd_rn(sum, __fmul_rn(a.x, a.x));
  sum = __fadd_rn(sum, __fmul_rn(a.y, a.y));
  sum = __fadd_rn(sum, __fmul_rn(a.z, a.z));
  return __fadd_rn(sum, __fmul_rn(a.w, a.w));
}
__device__ __forceinline__ float squares(float sum, const Eight& a) {
  return squares(squares(sum, a.low), a.high);
}

// A thread's sum of squares, of lane `lane`, added to those of its warp.
__device__ __forceinline__ float sum_of_warp(float own) {
  for (int apart = 16; apart > 0; apart /= 2) own = __fadd_rn(own, __shfl_xor_sync(0xffffffffu, own, apart));
  return own;
}
// What a row is multiplied by, from the sums of its eight warps.
__device__ __forceinline__ float norm_scale(const float (&of_warp)[norm_warps], int hidden, float eps) {
  float sum = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < norm_warps; ++warp) sum = __fadd_rn(sum, of_warp[warp]);
  return 1.0f / sqrtf(sum / static_cast<float>(hidden) + eps);
}

// What is added to a weight: one where it is kept less one, or else what changes no bit of any.
inline constexpr float weight_as_it_is = -0.0f;
__device__ __forceinline__ float centre_of(bool weight_less_one) {
  return weight_less_one ? 1.0f : weight_as_it_is;
}

__device__ __forceinline__ std::uint32_t scaled_pair(float a, float b, float scale, std::uint32_t weights,
                                                     float centre) {
  const float of_a = __fadd_rn(__uint_as_float(weights << 16), centre),
              of_b = __fadd_rn(__uint_as_float(weights & 0xffff0000u), centre);
  return ptx::pack_bf16x2(__fmul_rn(__fmul_rn(a, scale), of_a), __fmul_rn(__fmul_rn(b, scale), of_b));
}
// Eight columns of the norm, from their weights.
__device__ __forceinline__ uint4 scaled(const Eight& eight, float scale, const uint4& weights,
                                        float centre = weight_as_it_is) {
  return make_uint4(scaled_pair(eight.low.x, eight.low.y, scale, weights.x, centre),
                    scaled_pair(eight.low.z, eight.low.w, scale, weights.y, centre),
                    scaled_pair(eight.high.x, eight.high.y, scale, weights.z, centre),
                    scaled_pair(eight.high.z, eight.high.w, scale, weights.w, centre));
}

}  // namespace nibble
