// Blocks of a cluster, which run at the same time and reach into each other's shared memory.
#pragma once

#include <cstdint>

#include "ops/ptx/async_copy.cuh"

namespace nibble::ptx {

// Returns when every thread of the cluster's blocks has come; what they wrote to memory before is visible to
// loads past the first-level cache (__ldcg), and so are barriers they initialised to the others. A block
// without a cluster is one of its own. No block may end while another still copies to it or arrives there.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

// The two halves of the barrier: a thread comes to it, and what it does before it waits holds up nobody.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// An arrival at the barrier that lies in the block `rank` where `barrier` lies in this one. It hands over
// places that have been read, and orders nothing that was written.
__device__ __forceinline__ void mbarrier_arrive_at(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// bulk_copy_to_shared into every block whose bit is in `ranks`, at the place that `shared` is in this one;
// the bytes count at each block's own barrier in the place of `barrier`. They may come before that barrier's
// phase expects any, as long as an arrival of the phase is still out.
__device__ __forceinline__ void bulk_copy_to_blocks(void* shared, const void* global, std::uint32_t bytes,
                                                    std::uint64_t* barrier, unsigned ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

// 16 bytes to the place in block `rank` that `shared` is in this one; they count at that block's barrier in
// the place of `barrier`, under the same condition. Under way when it returns.
__device__ __forceinline__ void store_to_block(float4* shared, const float4& value, std::uint64_t* barrier,
                                               int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there, its_barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %6;\n"
      "mapa.shared::cluster.u32 its_barrier, %5, %6;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, "
      "[its_barrier];\n"
      "}" ::"r"(shared_address(shared)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

}  // namespace nibble::ptx
