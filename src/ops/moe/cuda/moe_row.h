// The expert layer of one row, a kernel of its own: what moe_few_cuda takes where nothing passes between
// ranks. Chunks of gpt-oss's are left to the kernel for few, which knows them beforehand.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {

inline bool takes_one_row(const MoeCudaArgs& args) {
  return args.tokens == 1 && args.share.turns <= 1 && args.peers.room == nullptr;
}

// Queues both products, whose shapes have been checked; the sum of the row's experts is left.
template <class Granules>
void moe_row_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, int blocks,
                  cudaStream_t stream);

}  // namespace nibble
