// Loads and stores of memory that several GPUs of a host see: relaxed, at the scope of the system. A word of
// four bytes comes and goes as a whole; the four of a vector may arrive apart.
#pragma once

#include <cstdint>

namespace nibble::ptx {

__device__ __forceinline__ uint4 load_peer(const uint4* at) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at)
               : "memory");
  return value;
}
__device__ __forceinline__ uint2 load_peer(const uint2* at) {
  uint2 value;
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0,%1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(at)
               : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_peer(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_peer(uint4* at, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_peer(uint2* at, const uint2& value) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1,%2};" ::"l"(at), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_peer(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
// What this thread wrote before is visible to the host and to other GPUs before what it writes after.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Adds one and returns what was there, among the threads of this device: what those wrote that added before
// is there for this one, and what this one wrote for later ones.
__device__ __forceinline__ std::uint32_t count_up(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

}  // namespace nibble::ptx
