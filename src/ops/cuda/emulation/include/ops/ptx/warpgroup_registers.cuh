// The twins of src/ops/ptx/warpgroup_registers.cuh on the emulation.
#pragma once

#include <cstdint>

#include "ops/ptx/warpgroup.cuh"

namespace nibble::ptx {

template <int pending>
void wgmma_wait_but() {
  emulation::await_products(pending);
}
template <int pending, int count>
void wgmma_wait_but(float (&)[count]) {
  wgmma_wait_but<pending>();
}
template <int count>
void computed_before(float (&)[count]) {}
template <int count>
void wgmma_wait_all(float (&)[count]) {
  wgmma_wait_but<0>();
}

template <int count>
void wgmma_bf16(float (&sums)[count], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  wgmma_from_registers(sums, a[0], a[1], a[2], a[3], b, add);
}

template <int registers>
void keep_registers() {}
template <int registers>
void take_registers() {}

}  // namespace nibble::ptx
