// Which of a GPU's two expert kernels takes a step's tokens. They give the same bits.
#pragma once

#include <cstdint>

namespace nibble {

// Tokens an expert, on average, from which the kernel for many is the sooner one, by the bytes a second that
// the GPU reads. Where memory is slow both wait for weights and the one for many, which asks for more of them
// at a time, waits less; where it is fast the one for few, with more warps to decode them, is ahead until
// most of its experts need a second pass. Measured on an H100 and an H200.
inline constexpr double moe_fast_memory = 4e12;
constexpr int moe_many_tokens_from(double read_bandwidth) { return read_bandwidth < moe_fast_memory ? 1 : 3; }

// Where no plan says from how many.
inline constexpr int moe_many_tokens_unplanned = moe_many_tokens_from(moe_fast_memory);

// So many slots are always for the kernel for few, which finds its way through them without tables.
inline constexpr int moe_fewest_slots = 32;

// slots: a step's tokens, each as often as it has experts.
constexpr bool moe_takes_many(std::int64_t slots, std::int64_t experts, int from) {
  return slots > moe_fewest_slots && slots >= from * experts;
}

}  // namespace nibble
