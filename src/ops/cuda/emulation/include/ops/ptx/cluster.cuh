// The twins of src/ops/ptx/cluster.cuh on the emulation.
#pragma once

#include <cstdint>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline void cluster_barrier() {
  emulation::cluster_arrive();
  emulation::cluster_wait();
}
inline void cluster_arrive() { emulation::cluster_arrive(); }
inline void cluster_wait() { emulation::cluster_wait(); }
inline int cluster_rank() { return static_cast<int>(emulation::cluster_rank()); }
inline void mbarrier_arrive_at(std::uint64_t* barrier, int rank) {
  emulation::barrier_arrive_at(barrier, static_cast<unsigned>(rank));
}
inline void bulk_copy_to_blocks(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* barrier,
                                unsigned ranks) {
  emulation::copy_to_blocks(shared, global, bytes, barrier, ranks);
}

inline void store_to_block(float4* shared, const float4& value, std::uint64_t* barrier, int rank) {
  emulation::store_to_block(shared, &value, barrier, static_cast<unsigned>(rank));
}

}  // namespace nibble::ptx
