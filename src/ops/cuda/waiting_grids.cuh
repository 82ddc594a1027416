// How a kernel's file finds how many places its grid has (ops/cuda/waiting_grids.h).
#pragma once

#include <algorithm>
#include <string_view>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.h"

namespace nibble {

// Of a launch with as much shared memory as any of the kernel's has. A multiprocessor's places are what fits
// into the share that the launch asks for, which is taken to be more only where not even one block fits.
template <class... Params>
WaitingGrid waiting_grid(std::string_view name, const Launch& launch, void (*kernel)(Params...)) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(launch.shared_bytes)));
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, kernel));
  int most = 0;
  cuda_check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, kernel, launch.threads, launch.shared_bytes));
  const std::size_t of_block = launch.shared_bytes + attributes.sharedSizeBytes + shared_of_block;
  const int of_share = std::max(1, static_cast<int>(static_cast<std::size_t>(launch.share.bytes) / of_block));
  return {.kernel = name,
          .blocks = static_cast<int>(launch.blocks.x),
          .places = std::min(most, of_share) * processors_of_device()};
}

}  // namespace nibble
