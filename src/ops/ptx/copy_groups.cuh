// Copies to shared memory in groups that a thread waits for in the order in which it asked for them.
#pragma once

#include "ops/ptx/async_copy.cuh"

namespace nibble::ptx {

// All copy_to_shared of this thread since the last group are one.
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns when all groups but the latest `pending` are there for this thread.
template <int pending>
__device__ __forceinline__ void await_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace nibble::ptx
