// Vectors of float32, and the sum over a token's experts made of them.
#pragma once

#include <cstdint>

namespace nibble {

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
__device__ __forceinline__ float4 times(const float4& a, float b) {
  return make_float4(__fmul_rn(a.x, b), __fmul_rn(a.y, b), __fmul_rn(a.z, b), __fmul_rn(a.w, b));
}

// The sum of weight x product over a token's choices, in order of top-k, each operation rounded. A choice of
// no expert (-1) adds nothing, not even a zero.
template <class Vector>
struct ExpertSum {
  Vector sum{};
  bool any = false;

  __device__ __forceinline__ void add_product(std::int32_t expert, float weight, const Vector& product) {
    if (expert < 0) return;
    const Vector term = times(product, weight);
    sum = any ? add(sum, term) : term;
    any = true;
  }
};

}  // namespace nibble
