// The expert layer of some tokens, a kernel of its own: what moe_few_cuda takes where each warp of a block
// has several granules and nothing passes between ranks. Chunks of gpt-oss's are left to the kernel for few,
// which knows them beforehand.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {

template <class Layout>
struct DecodeParams;  // moe_decode_work.cuh

inline constexpr int moe_some_warps = 24;        // of a block
inline constexpr int moe_some_stage_blocks = 5;  // k64 blocks of a warp's stage, at most
// Granules of a block in the first product, from which it is the sooner one. With fewer rounds of all warps
// the last one, in which few of them have work, takes longer than three warps a granule do.
inline constexpr int moe_some_least_granules = 3 * moe_some_warps;

// granules: of a block in the first product.
template <class Granules>
bool takes_some(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, int granules) {
  const auto has_all_chunks = [](const auto& shape) { return shape.blocks() >= granule_k_chunks; };
  return args.tokens * args.top_k > moe_fewest_slots && args.peers.room == nullptr &&
         granules >= moe_some_least_granules && has_all_chunks(weights.gate_up.shape) &&
         has_all_chunks(weights.down.shape);
}

// Queues both products of a launch's slots; the sums of rows' experts are left. params: with chunks of K in
// stages of moe_some_stage_blocks.
template <class Layout>
void moe_some_cuda(const DecodeParams<Layout>& params, int blocks, cudaStream_t stream);

}  // namespace nibble
