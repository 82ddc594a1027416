// How kernels are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tensor/cuda_check.h"

namespace nibble {

// The multiprocessors of the device in use.
inline int processors_of_device() {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return processors;
}

// How much of a multiprocessor's 256 KB a kernel asks for as shared memory, in percent of the 228 KB there
// can be; the rest is first-level cache. The driver takes the next of the sizes it has, which should be these
// bytes; what it took cannot be asked. A multiprocessor changes it only when nothing runs there, so a kernel
// that asks for another share does not begin beside the end of the one before: without one share for all a
// decode step of gpt-oss-120b takes 4 % longer.
struct SharedShare {
  int percent, bytes;
};
inline constexpr SharedShare shared_228_kb{100, 228 * 1024}, shared_196_kb{72, 196 * 1024},
    shared_164_kb{71, 164 * 1024};

// What the kernels of a step of so many rows ask for: with few, all there is, so that more weights come ahead
// of their products; with more, whose inputs the expert layer finds in the first-level cache, less.
inline constexpr int rows_of_all_shared = 4;
constexpr SharedShare share_of(int rows) {
  return rows <= rows_of_all_shared ? shared_228_kb : shared_196_kb;
}
// What each block takes of it beyond what it asks for.
inline constexpr int shared_of_block = 1024;
// What a kernel that takes what there is leaves to a block of the launch before or behind it, and of a
// norm's.
inline constexpr int shared_beside = 72 * 1024, shared_of_norm = 2048;

// With so much a block has no second one of its launch beside it. A launch's blocks take their places while
// others still run. So of a grid of as many blocks as multiprocessors, two may come to one and none to
// another, which takes the launch twice as long.
inline constexpr int shared_of_lone_block = 114 * 1024;

struct Launch {
  dim3 blocks;
  int threads = 0;  // a block
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  // It may take its place while the kernel before it still runs, and waits for that one's results by itself
  // (ptx::grid_dependency_wait).
  bool overlaps = false;
  // So many blocks, neighbours in a row of the grid, run at the same time (ptx/cluster.cuh); above 8 the
  // kernel must have been allowed to.
  int cluster = 1;
  SharedShare share = shared_196_kb;  // more is taken if the blocks need it
};

// Runs run(config), of a kernel's launch as the driver wants it.
template <class Run>
void with_launch_config(const Launch& launch, const Run& run) {
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[count++].val.sharedMemCarveout = static_cast<unsigned>(launch.share.percent);
  if (launch.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(launch.cluster);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.blocks;
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  run(config);
}

template <class... Params, class... Args>
void launch_kernel(const Launch& launch, void (*kernel)(Params...), const Args&... args) {
  with_launch_config(launch, [&](const cudaLaunchConfig_t& config) {
    cuda_check(cudaLaunchKernelEx(&config, kernel, args...));
  });
}

// How many of such a launch's clusters the device in use runs at the same time: they lie in groups of
// multiprocessors that are not all of one size, nor the same on every device of a kind. 0: it can run none,
// because a group is too small (a slice of a GPU) or because it knows no clusters of this size.
template <class... Params>
int clusters_at_once(const Launch& launch, void (*kernel)(Params...)) {
  int clusters = 0;
  cudaError_t error = cudaSuccess;
  with_launch_config(launch, [&](const cudaLaunchConfig_t& config) {
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  });
  if (error == cudaErrorInvalidClusterSize || error == cudaErrorInvalidConfiguration) {
    (void)cudaGetLastError();  // later calls must not find it
    return 0;
  }
  cuda_check(error);
  return clusters;
}

}  // namespace nibble
