// Loads that the compiler leaves where they are written.
#pragma once

#include <cstdint>

namespace nibble::ptx {

// 16 bytes that are read once: they take no place in the first-level cache. Not moved past another such load
// or anything else volatile, so that a row of them is on its way before the first is waited for.
__device__ __forceinline__ uint4 load_streaming(const void* global) {
  uint4 words;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(global));
  return words;
}

}  // namespace nibble::ptx
