// Waits for other blocks of a launch, or for other warps, that end: by what was waited for, or by a trap that
// names it.
#pragma once

#include <cstdint>

#include "ops/cuda/stuck.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble::ptx {

inline constexpr unsigned give_up_polls = 1u << 23;  // they take seconds: a block is missing

// note: one word of pinned host memory, or null.
__device__ __forceinline__ void give_up(std::uint32_t* note, Stuck waiting_for) {
  if (note != nullptr) {
    *reinterpret_cast<volatile std::uint32_t*>(note) = static_cast<std::uint32_t>(waiting_for);
    __threadfence_system();  // it is there before the trap ends the kernel
  }
  __trap();
}

// Returns once the counter has come to `count`; what was written before it was counted up is visible then.
__device__ __forceinline__ void await_count(const unsigned* counter, unsigned count, std::uint32_t* note,
                                            Stuck waiting_for) {
  for (unsigned polls = 0; load_acquire(counter) < count; ++polls) {
    if (polls == give_up_polls) give_up(note, waiting_for);
  }
}

// Where all blocks of a grid meet once: a word, zeroed once, that needs no resetting, so that no kernel has
// to know of another's meetings. Its top bit turns when the last block has come, and the bits below are zero
// then. By one thread of each block; what any block's thread wrote before is visible to this one afterwards.
__device__ __forceinline__ void meet_blocks(unsigned* word, unsigned blocks, bool first_block,
                                            std::uint32_t* note, Stuck waiting_for) {
  constexpr unsigned turn = 1u << 31;
  const unsigned own = first_block ? turn - (blocks - 1) : 1, before = add_acquire_release(word, own);
  unsigned now = before + own;
  for (unsigned polls = 0; ((now ^ before) & turn) == 0; ++polls) {
    if (polls == give_up_polls) give_up(note, waiting_for);
    now = load_acquire(word);
  }
}

// 2^32 cycles each, some two seconds: more than other GPUs are waited for, whose meetings these may be
// behind, and less than a step may take (--step-timeout).
inline constexpr unsigned give_up_turns = 5;

__device__ __forceinline__ unsigned turns_of_clock() {
  unsigned turns;
  asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(turns));
  return turns;
}

// mbarrier_wait by who fills a ring. Who reads it waits by mbarrier_wait, without an end: where it waits for
// what never comes, the ring stays full, and this wait ends. Dense products and the delta rule lose nothing
// by it. Other kernels wait by mbarrier_wait on both sides: their readers would spill registers, and a thread
// that copies a step in many pieces is slower by this loop.
__device__ __forceinline__ void await_room(std::uint64_t* barrier, std::uint32_t parity, std::uint32_t* note,
                                           Stuck waiting_for) {
  if (mbarrier_has_ended(barrier, parity)) return;
  const unsigned begin = turns_of_clock();
  while (!mbarrier_has_ended(barrier, parity)) {
    if (turns_of_clock() - begin > give_up_turns) give_up(note, waiting_for);
  }
}

}  // namespace nibble::ptx
