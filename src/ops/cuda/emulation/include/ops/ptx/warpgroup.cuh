// The twins of src/ops/ptx/warpgroup.cuh on the emulation, where a product is done when it returns; but
// its sums are no numbers until it is waited for, and up to then a watch of races (races.h) takes it to read
// its operands.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/emulation/emulation.h"
#include "ops/ptx/tensor_core.cuh"

namespace nibble::ptx {

// An address of 48 bits, and above it group_bytes / 16; or that a row lies there as it is.
inline constexpr std::uint64_t operand_is_a_row = std::uint64_t{1} << 63;
inline std::uint64_t wgmma_row_operand(const void* shared) {
  if (reinterpret_cast<std::uint64_t>(shared) % 16 != 0) emulation::stop("a misaligned operand of wgmma");
  return reinterpret_cast<std::uint64_t>(shared) | operand_is_a_row;
}
template <int group_bytes>
std::uint64_t wgmma_operand(const void* shared) {
  static_assert(group_bytes / 16 < 1 << 15);
  if (reinterpret_cast<std::uint64_t>(shared) % 16 != 0) emulation::stop("a misaligned operand of wgmma");
  return reinterpret_cast<std::uint64_t>(shared) | std::uint64_t{group_bytes / 16} << 48;
}
inline std::uint64_t wgmma_operand_at(std::uint64_t operand, unsigned bytes) { return operand + bytes; }
inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::close_products(); }
inline void wgmma_wait_but_last() { emulation::await_products(1); }
template <int count>
void wgmma_wait(float (&)[count]) {
  emulation::await_products(0);
}

// Two bfloat16 of row `row`: the pair `pair` (0..3) of the half `half` of 16 k.
inline std::uint32_t wgmma_pair(std::uint64_t operand, unsigned row, unsigned half, unsigned pair) {
  const auto* shared = reinterpret_cast<const std::uint8_t*>(operand & 0xffffffffffffu);
  const bool is_a_row = (operand & operand_is_a_row) != 0;
  const std::uint64_t group_bytes = is_a_row ? 0 : operand >> 48 << 4;
  return emulation::operand_of_products(shared + row / 8 * group_bytes + half * (is_a_row ? 16 : 128) +
                                        row % 8 * 16 + pair * 4);
}

template <int count>
void wgmma_from_registers(float (&sums)[count], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                          std::uint32_t a3, std::uint64_t b, bool add) {
  const unsigned g = emulation::thread_index() % 32 / 4, t = emulation::thread_index() % 4;
  emulation::begin_product(sums);
  for (int tile = 0; tile < count / 4; ++tile) {
    const unsigned column = 8 * static_cast<unsigned>(tile) + g;
    float(&four)[4] = *reinterpret_cast<float(*)[4]>(&sums[4 * tile]);
    if (!add) std::memset(four, 0, sizeof four);
    mma_m16n8k16_bf16(four, a0, a1, a2, a3, wgmma_pair(b, column, 0, t), wgmma_pair(b, column, 1, t));
  }
  emulation::end_product(sums, count);
}

template <int count>
void wgmma_bf16(float (&sums)[count], std::uint64_t a, std::uint64_t b, bool add) {
  const unsigned row = emulation::thread_index() / 32 % 4 * 16 + emulation::thread_index() % 32 / 4;
  const unsigned t = emulation::thread_index() % 4;
  wgmma_from_registers(sums, wgmma_pair(a, row, 0, t), wgmma_pair(a, row + 8, 0, t), wgmma_pair(a, row, 1, t),
                       wgmma_pair(a, row + 8, 1, t), b, add);
}

}  // namespace nibble::ptx
