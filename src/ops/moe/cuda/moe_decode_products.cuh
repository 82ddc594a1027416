// How a warp multiplies the stages of the kernel for few tokens.
#pragma once

#include <cstdint>

#include "ops/moe/cuda/granule_operands.cuh"
#include "ops/moe/cuda/moe_decode_work.cuh"

namespace nibble {

struct Inputs {  // a lane's 16 activations of its column in a k64 block
  uint4 low, high;
};
__device__ __forceinline__ Inputs load_inputs(const Bf16* at) {
  const uint4* quads = reinterpret_cast<const uint4*>(at);
  return {quads[0], quads[1]};
}

// The four k16 steps of a k64 block. codes, scales: this lane's, in shared memory.
template <class Layout>
__device__ __forceinline__ void multiply_block(float (&sums)[4], const std::uint8_t* codes,
                                               const std::uint8_t* scales, const Inputs& in) {
  const uint4 words = *reinterpret_cast<const uint4*>(codes);
  using Pairs = typename Layout::Pairs;
  const auto* const stored = reinterpret_cast<const typename Layout::Stored*>(scales);
  const LaneScale<Layout> even(stored[0]), odd(stored[1]);
  const std::uint32_t inputs[8] = {in.low.x,  in.low.y,  in.low.z,  in.low.w,
                                   in.high.x, in.high.y, in.high.z, in.high.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t word[2] = {half == 0 ? words.x : words.z, half == 0 ? words.y : words.w};
    const PlacedPairs placed = placed_pairs<Pairs>(word[0], word[1]);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ptx::mma_m16n8k16_bf16(sums, even.weights(placed.pair[4 * step]),
                             odd.weights(placed.pair[4 * step + 1]), even.weights(placed.pair[4 * step + 2]),
                             odd.weights(placed.pair[4 * step + 3]), inputs[4 * half + 2 * step],
                             inputs[4 * half + 2 * step + 1]);
    }
  }
}

// A stage's blocks. `next`: the first one's inputs, then those of the block after the last, if there is one.
template <class Layout, int blocks>
__device__ __forceinline__ void multiply_stage(float (&sums)[4], const std::uint8_t* codes,
                                               const std::uint8_t* scales, const Bf16* inputs, Inputs& next,
                                               bool more) {
#pragma unroll
  for (int block = 0; block < blocks; ++block) {
    const Inputs now = next;
    if (block + 1 < blocks || more) next = load_inputs(inputs + (block + 1) * granule_k);
    multiply_block<Layout>(sums, codes + block * granule_block_bytes<Layout>,
                           scales + block * granule_block_bytes<Layout>, now);
  }
}

// The same of a number of blocks, at most `most`, that the compiler does not know: there is code for each.
template <class Layout, int most>
__device__ __forceinline__ void multiply_stage_of(int blocks, float (&sums)[4], const std::uint8_t* codes,
                                                  const std::uint8_t* scales, const Bf16* inputs,
                                                  Inputs& next, bool more) {
  if constexpr (most > 1) {
    if (blocks < most)
      return multiply_stage_of<Layout, most - 1>(blocks, sums, codes, scales, inputs, next, more);
  }
  multiply_stage<Layout, most>(sums, codes, scales, inputs, next, more);
}

}  // namespace nibble
