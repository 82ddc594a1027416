// The twin of src/ops/ptx/give_up.cuh on the emulation.
#pragma once

#include <cstdint>
#include <string>

#include "ops/cuda/emulation/emulation.h"
#include "ops/cuda/stuck.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble::ptx {

inline unsigned give_up_polls = 1u << 23;  // a test's to lower, before it launches

[[noreturn, gnu::noinline]] inline void give_up(std::uint32_t*, Stuck waiting_for) {
  emulation::stop(("a kernel gave up waiting for " + std::string(stuck_name(waiting_for))).c_str());
}

inline void await_count(unsigned* counter, unsigned count, std::uint32_t* note, Stuck waiting_for) {
  for (unsigned polls = 0; load_acquire(counter) < count; ++polls) {
    if (polls == give_up_polls) give_up(note, waiting_for);
  }
}

inline void meet_blocks(unsigned* word, unsigned blocks, bool first_block, std::uint32_t* note,
                        Stuck waiting_for) {
  constexpr unsigned turn = 1u << 31;
  const unsigned own = first_block ? turn - (blocks - 1) : 1, before = add_acquire_release(word, own);
  unsigned now = before + own;
  for (unsigned polls = 0; ((now ^ before) & turn) == 0; ++polls) {
    if (polls == give_up_polls) give_up(note, waiting_for);
    now = load_acquire(word);
  }
}

inline void await_room(std::uint64_t* barrier, std::uint32_t parity, std::uint32_t* note, Stuck waiting_for) {
  for (unsigned polls = 0; !emulation::barrier_has_ended(barrier, parity); ++polls) {
    if (polls == give_up_polls) give_up(note, waiting_for);
    emulation::poll();
  }
  mbarrier_wait(barrier, parity);
}

}  // namespace nibble::ptx
