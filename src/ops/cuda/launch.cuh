// How kernels are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tensor/cuda_check.h"

namespace nibble {

struct Launch {
  dim3 blocks;
  int threads = 0;  // a block
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  // It may take its place while the kernel before it still runs, and waits for that one's results by itself
  // (ptx::grid_dependency_wait).
  bool overlaps = false;
};

template <class... Params, class... Args>
void launch_kernel(const Launch& launch, void (*kernel)(Params...), const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.blocks;
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = launch.overlaps ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace nibble
