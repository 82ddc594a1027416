// The twins of src/comm/ptx/peer.cuh on the emulation.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

template <class Words>
Words load_peer(const Words* at) {
  emulation::poll();
  Words words;
  auto* const from = reinterpret_cast<std::uint32_t*>(const_cast<Words*>(at));
  std::uint32_t bits[sizeof(Words) / 4];
  // Acquired: threads of the operating system stand for GPUs, and hand on what the order of calls does there.
  for (std::size_t i = 0; i < sizeof(Words) / 4; ++i)
    bits[i] = std::atomic_ref<std::uint32_t>(from[i]).load(std::memory_order_acquire);
  std::memcpy(&words, bits, sizeof words);
  return words;
}
template <class Words>
void store_peer(Words* at, const Words& words) {
  std::uint32_t bits[sizeof(Words) / 4];
  std::memcpy(bits, &words, sizeof words);
  emulation::store_later(at, bits, sizeof(Words) / 4);
}
inline void fence_system() { emulation::fence_system(); }
inline std::uint32_t count_up(std::uint32_t* counter) {
  return std::atomic_ref<std::uint32_t>(*counter).fetch_add(1, std::memory_order_acq_rel);
}
// An emulated GPU is slower than a real one by far, so deadlines are longer there.
inline std::uint64_t nanoseconds() {
  constexpr int slower = 4;
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) / slower;
}

}  // namespace nibble::ptx
