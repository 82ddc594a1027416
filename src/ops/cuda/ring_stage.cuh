// A place in a ring of stages in shared memory.
#pragma once

namespace nibble {

// The stage that comes next, and the parity of the phase that fills it.
struct RingStage {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

}  // namespace nibble
