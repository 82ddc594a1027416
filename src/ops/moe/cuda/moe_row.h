// The expert layer of one row, a kernel of its own: what moe_few_cuda takes where nothing passes between
// ranks. Chunks of gpt-oss's are left to the kernel for few, which knows them beforehand.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {

// Of one granule the kernel's way of dividing by their number finds no choice.
template <class Granules>
bool takes_one_row(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args) {
  return args.tokens == 1 && args.share.turns <= 1 && args.peers.room == nullptr &&
         weights.down.shape.granules() > 1;
}

// Queues both products, whose shapes have been checked; the sum of the row's experts is left.
template <class Granules>
void moe_row_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, int blocks,
                  cudaStream_t stream);

}  // namespace nibble
