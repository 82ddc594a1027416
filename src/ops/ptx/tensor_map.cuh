// Copies of boxes from a matrix in memory into shared memory, and the maps that say where its rows lie.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/ptx/async_copy.cuh"
#include "tensor/cuda_check.h"

namespace nibble::ptx {

using TensorMap = CUtensorMap;

inline constexpr int box_bytes = 1024;  // of a row

// For boxes of box_rows rows (at most 256) x 1 KB of a matrix of `rows` rows of row_bytes, a multiple of 1
// KB. To be handed to a kernel by value, as __grid_constant__.
inline TensorMap box_map(const void* matrix, std::size_t row_bytes, int rows, int box_rows) {
  static const auto encode = [] {  // of the driver, which nothing links
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  TensorMap map;
  const cuuint64_t sizes[2] = {row_bytes / 4, static_cast<cuuint64_t>(rows)}, strides[1] = {row_bytes};
  const cuuint32_t box[2] = {box_bytes / 4, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NIBBLE_CHECK(result == CUDA_SUCCESS, "a map for copies of boxes");
  return map;
}

// Asks for the map itself, which a first copy would wait for.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box that begins at KB `column` of row `row`, its rows one after the other; rows past the matrix are
// zeros, and count. `shared` is a multiple of 128.
__device__ __forceinline__ void box_copy_to_shared(void* shared, const TensorMap& map, int column, int row,
                                                   std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column * (box_bytes / 4)), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The same into every block of the cluster whose bit is in `ranks`, as bulk_copy_to_blocks (cluster.cuh).
__device__ __forceinline__ void box_copy_to_blocks(void* shared, const TensorMap& map, int column, int row,
                                                   std::uint64_t* barrier, unsigned ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column * (box_bytes / 4)), "r"(row), "r"(shared_address(barrier)),
      "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

}  // namespace nibble::ptx
