// The twins of src/ops/ptx/copy_groups.cuh on the emulation, where copies are done when they are asked for.
#pragma once

#include "ops/ptx/async_copy.cuh"

namespace nibble::ptx {

inline void end_copy_group() {}
template <int>
void await_copy_groups() {
  emulation::await_copies_by_thread();
}

}  // namespace nibble::ptx
