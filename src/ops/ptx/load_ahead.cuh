// Loads that the compiler leaves where they are written.
#pragma once

namespace nibble::ptx {

// A number that this launch does not write. Not moved past another such load or anything else volatile, so
// that a row of them is on its way before the first is waited for.
__device__ __forceinline__ float load_ahead(const float* global) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(global));
  return value;
}

}  // namespace nibble::ptx
