// The twins of src/ops/ptx/async_copy.cuh on the emulation.
#pragma once

#include <cstdint>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

template <class T>
T* held(T* shared) {
  return shared;
}
inline int held(int value) { return value; }
inline void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  emulation::barrier_init(barrier, arrivals);
}
inline void await_loads(std::uint32_t) {}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(std::uint64_t* barrier) { emulation::barrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  emulation::barrier_arrive(barrier, bytes);
}
inline void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  emulation::barrier_wait(barrier, parity);
}
inline void fence_shared_writes() { emulation::fence_writes(); }
inline void copy_to_shared(void* shared, const void* global) { emulation::copy_by_thread(shared, global); }
inline void await_copies_to_shared() { emulation::await_copies_by_thread(); }
inline void fence_bulk_copies() { emulation::fence_writes(); }
inline void mbarrier_arrive_after_copies(std::uint64_t* barrier) {
  emulation::barrier_arrive_after_copies(barrier);
}
inline void bulk_copy_to_shared(void* shared, const void* global, std::uint32_t bytes,
                                std::uint64_t* barrier) {
  emulation::copy_to_shared(shared, global, bytes, barrier);
}
inline void bulk_copy_once_to_shared(void* shared, const void* global, std::uint32_t bytes,
                                     std::uint64_t* barrier) {
  emulation::copy_to_shared(shared, global, bytes, barrier);
}
inline std::uint64_t copied_once() { return 0; }
inline void bulk_copy_once_to_shared(void* shared, const void* global, std::uint32_t bytes,
                                     std::uint64_t* barrier, std::uint64_t) {
  emulation::copy_to_shared(shared, global, bytes, barrier);
}

inline void bulk_copy_to_global(void* global, const void* shared, std::uint32_t bytes) {
  emulation::copy_from_shared(global, shared, bytes);
}
inline void await_bulk_reads() { emulation::await_copies_from_shared(); }
inline void await_bulk_copies() { emulation::await_copies_from_shared(); }

inline void touch_sector(std::uint32_t*, const void* global) {
  static_cast<void>(*static_cast<const volatile std::uint32_t*>(global));  // it must be there
}

}  // namespace nibble::ptx
