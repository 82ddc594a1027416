// The twins of src/ops/ptx/grid.cuh on the emulation.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline std::uint8_t* dynamic_shared() { return emulation::dynamic_shared(); }
inline void grid_dependency_wait() { emulation::wait_for_launches(); }
inline void grid_launch_dependents() {}
inline void count_up_release(unsigned* counter) {
  std::atomic_ref<unsigned>(*counter).fetch_add(1, std::memory_order_release);
}
inline unsigned add_acquire_release(unsigned* counter, unsigned by) {
  return std::atomic_ref<unsigned>(*counter).fetch_add(by, std::memory_order_acq_rel);
}
inline unsigned load_acquire(unsigned* counter) {
  emulation::poll();
  return std::atomic_ref<unsigned>(*counter).load(std::memory_order_acquire);
}
template <class Words>
Words load_relaxed(const Words* at) {
  emulation::poll();
  Words words;
  auto* const from = reinterpret_cast<std::uint32_t*>(const_cast<Words*>(at));
  auto* const to = reinterpret_cast<std::uint32_t*>(&words);
  for (std::size_t i = 0; i < sizeof(Words) / 4; ++i)
    to[i] = std::atomic_ref<std::uint32_t>(from[i]).load(std::memory_order_relaxed);
  return words;
}
template <class Words>
void store_relaxed(Words* at, const Words& words) {
  std::uint32_t bits[sizeof(Words) / 4];
  std::memcpy(bits, &words, sizeof words);
  auto* const to = reinterpret_cast<std::uint32_t*>(at);
  // Last words first, some of them later than others.
  for (std::size_t i = sizeof(Words) / 4; i-- > 0;)
    std::atomic_ref<std::uint32_t>(to[i]).store(bits[i], std::memory_order_relaxed);
}
inline int warp_of_block() { return static_cast<int>(emulation::thread_index()) / 32; }
inline bool elected_lane() { return emulation::thread_index() % 32 == 0; }
inline void named_barrier(int id, int threads) {
  emulation::block_barrier(id, static_cast<unsigned>(threads));
}
inline void named_barrier_arrive(int id, int threads) {
  emulation::come_to_barrier(id, static_cast<unsigned>(threads));
}

}  // namespace nibble::ptx
