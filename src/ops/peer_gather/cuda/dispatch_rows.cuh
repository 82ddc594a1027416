// Where the rows of a dispatch lie and who wants them.
#pragma once

#include <string>

#include "ops/peer_gather/cuda/dispatch_rows_cuda.h"
#include "ops/peer_gather/cuda/slot_owners.cuh"

namespace nibble {

__device__ __forceinline__ uint4* row_of(const DispatchRowsCudaArgs& args, int place) {
  return reinterpret_cast<uint4*>(args.rows + static_cast<std::size_t>(place) * args.row_bytes);
}
__device__ __forceinline__ std::int32_t* ids_of(const DispatchRowsCudaArgs& args, int place) {
  return args.expert_ids + static_cast<std::size_t>(place) * static_cast<std::size_t>(args.top_k);
}

// Of ranks, a bit each: those that have the sequences of `rank`.
__device__ __forceinline__ unsigned sharers_of(const DispatchRowsCudaArgs& args, int rank) {
  return ((1u << args.sharers) - 1) << rank / args.sharers * args.sharers;
}

// A bit for each rank that multiplies for the row in that place.
__device__ __forceinline__ unsigned ranks_of(const DispatchRowsCudaArgs& args, int ranks, int place,
                                             const std::int32_t* ids) {
  unsigned of = 0;
  for (int k = 0; k < args.top_k; ++k) {
    const int owner = owner_of(args.owners, ranks, place * args.top_k + k, __ldcg(ids + k));
    if (owner >= 0) of |= 1u << owner;
  }
  return of;
}

inline Status check_dispatch(const DispatchRowsCudaArgs& args) {
  if ((reinterpret_cast<std::uintptr_t>(args.rows) | args.row_bytes) % sizeof(uint4) == 0 &&
      args.top_k <= dispatch_most_top_k && args.count <= args.places)
    return {};
  return invalid_argument("ranks send rows that begin and end at multiples of 16 bytes to up to " +
                          std::to_string(dispatch_most_top_k) +
                          " experts each, and no more than have places");
}

}  // namespace nibble
