// Blocks of a cluster, which run at the same time.
#pragma once

namespace nibble::ptx {

// Returns when every thread of the cluster's blocks has come; what they wrote to memory before is visible to
// loads past the first-level cache (__ldcg). A block without a cluster is one of its own.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

}  // namespace nibble::ptx
