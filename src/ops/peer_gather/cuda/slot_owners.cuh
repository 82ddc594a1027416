// Who multiplies for which slot, and the kernel for few of them.
#pragma once

#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {

// The rank, or -1 where the slot has no expert.
__device__ __forceinline__ int owner_of(const SlotOwners& owners, int ranks, int slot, std::int32_t expert) {
  if (expert < 0) return -1;
  if (owners.by_turns) return slot % ranks;
  int rank = 0;
  while (rank + 1 < ranks && expert >= owners.first_expert[rank + 1]) ++rank;
  return rank;
}

Status gather_few_products_cuda(const PeerRoom& room, const GatherProductsCudaArgs& args,
                                cudaStream_t stream);

}  // namespace nibble
