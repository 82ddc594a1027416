// A block's shared memory that begins with tiles of warpgroups' products (ops/ptx/warpgroup_swizzled.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup_swizzled.cuh"

namespace nibble {

// As a kernel lays it out, at a multiple of what tiles want.
template <class Shared>
__device__ __forceinline__ Shared& tile_shared() {
  constexpr int alignment = ptx::swizzled_eight_bytes;
  std::uint8_t* const bytes = ptx::dynamic_shared();
  const auto past = reinterpret_cast<std::uintptr_t>(bytes) % alignment;
  return *reinterpret_cast<Shared*>(bytes + (alignment - past) % alignment);
}
// So many a launch asks for.
template <class Shared>
inline constexpr std::size_t tile_shared_bytes = sizeof(Shared) + ptx::swizzled_eight_bytes;

}  // namespace nibble
