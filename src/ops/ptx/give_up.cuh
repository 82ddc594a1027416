// Waits for other blocks of a launch that end: by what was waited for, or by a trap that names it.
#pragma once

#include <cstdint>

#include "ops/cuda/stuck.h"
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

}  // namespace nibble::ptx
