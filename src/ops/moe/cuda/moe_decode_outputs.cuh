// What becomes of the sums of the kernel for few tokens: h, products, and what passes between ranks.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/absent.cuh"
#include "ops/moe/cuda/moe_decode_work.cuh"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/peer_gather/cuda/peer_window.cuh"
#include "ops/peer_gather/cuda/slot_owners.cuh"

namespace nibble {

// Stores what became of two rows' sums: h of a gate and its up projection, or two outputs.
template <class Layout>
__device__ __forceinline__ void finish(const DecodeParams<Layout>& params, int second, int slot, int row,
                                       float even, float odd) {
  if (second) {
    const std::size_t at = static_cast<std::size_t>(slot) * static_cast<std::size_t>(params.products[1].rows);
    *reinterpret_cast<float2*>(params.out + at + static_cast<std::size_t>(row)) = make_float2(even, odd);
    for (int i = 0; i < params.peers.windows.count; ++i) {
      float* const window =
          reinterpret_cast<float*>(params.peers.windows.at[i]) + at + static_cast<std::size_t>(row);
      ptx::store_peer(reinterpret_cast<uint2*>(window),
                      make_uint2(__float_as_uint(but_absent(even)), __float_as_uint(but_absent(odd))));
    }
  } else {
    const std::size_t at =
        static_cast<std::size_t>(slot) * static_cast<std::size_t>(params.products[1].input_stride);
    reinterpret_cast<__nv_bfloat16*>(params.activations)[at + static_cast<std::size_t>(row / 2)] =
        __float2bfloat16_rn(gated_on_device(even, odd, params.unit));
  }
}

// The products that other ranks send, of which each block takes a part when it has sent its own. A whole grid
// has more threads than there are vectors of few slots.
template <class Layout>
__device__ __forceinline__ void take_products(const DecodeParams<Layout>& params) {
  const DecodePeers& peers = params.peers;
  if (peers.room.ranks == 1) return;
  const int words = params.products[1].rows / 4, all = params.slots * words;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < all;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const int slot = i / words;
    const int owner = owner_of(peers.owners, peers.room.ranks, slot, __ldcg(params.expert_ids + slot));
    if (owner < 0 || owner == peers.room.rank) continue;
    reinterpret_cast<uint4*>(params.out)[i] =
        take(peers.room, reinterpret_cast<uint4*>(peers.window) + i, owner, 0);
  }
}

}  // namespace nibble
