// What warps of a block, blocks of a grid and grids of a stream tell each other.
#pragma once

#include <cstdint>

namespace nibble::ptx {

// The block's shared memory beyond what its kernel declares, as much as the launch asked for.
__device__ __forceinline__ std::uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  return bytes;
}

// Returns when the grids this one depends on have ended and what they wrote is visible.
__device__ __forceinline__ void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Once every block has said so (or ended), dependent grids may take up free multiprocessors. It orders no
// memory.
__device__ __forceinline__ void grid_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// What this thread wrote (and what it saw through barriers) is visible to who reads the new count.
__device__ __forceinline__ void count_up_release(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Adds and returns what was there. Who wrote before an earlier addition has written for this thread now, and
// what this thread wrote is there for later ones.
__device__ __forceinline__ unsigned add_acquire_release(unsigned* counter, unsigned by) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(by)
               : "memory");
  return before;
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Words that come and go each as a whole, by threads of any block; they order no memory.
__device__ __forceinline__ float4 load_relaxed(const float4* at) {
  float4 value;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(at)
               : "memory");
  return value;
}
__device__ __forceinline__ float2 load_relaxed(const float2* at) {
  float2 value;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(at)
               : "memory");
  return value;
}
__device__ __forceinline__ float load_relaxed(const float* at) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(float4* at, const float4& value) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(float2* at, const float2& value) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(at), "f"(value.x), "f"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(float* at, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(at), "f"(value) : "memory");
}

// The thread's warp, in a way that the compiler knows to be the same for all lanes: what branches on it may
// hold instructions that want whole warps.
__device__ __forceinline__ int warp_of_block() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

// True in exactly one lane of a converged warp. The compiler knows that it is one lane. So a bulk copy, which
// takes uniform registers, needs no loop over lanes.
__device__ __forceinline__ bool elected_lane() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Waits until `threads` of the block (whole warps) have come to barrier `id`, 1 to 15; 0 is __syncthreads's.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Comes to the barrier, as one of the `threads` that those who wait there wait for, and goes on.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace nibble::ptx
