// Functions that a multiprocessor has an instruction for, within 2 units in the last place.
#pragma once

namespace nibble::ptx {

// 1 / x; 0 of numbers above 2^126, whose inverse would be subnormal.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}

// 1 / sqrt(x), of x that is not subnormal.
__device__ __forceinline__ float inverse_root_fast(float x) {
  float found;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}

}  // namespace nibble::ptx
