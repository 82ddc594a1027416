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

// A matrix of blocks, [rows, blocks, block_bytes], and the boxes that are copied from it: so many blocks of
// each of so many rows.
struct Boxes {
  const void* matrix = nullptr;  // at a multiple of 16
  int block_bytes = 0;           // a multiple of 16, at most 1,024
  int blocks = 0, rows = 0;
  int box_blocks = 1, box_rows = 1;  // at most 256
};

// To be handed to a kernel by value, as __grid_constant__.
inline TensorMap box_map(const Boxes& of) {
  static const auto encode = [] {  // of the driver, which nothing links
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  TensorMap map;
  const auto block_bytes = static_cast<cuuint64_t>(of.block_bytes),
             blocks = static_cast<cuuint64_t>(of.blocks);
  const cuuint64_t sizes[3] = {block_bytes / 4, blocks, static_cast<cuuint64_t>(of.rows)},
                   strides[2] = {block_bytes, block_bytes * blocks};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(of.block_bytes / 4),
                             static_cast<cuuint32_t>(of.box_blocks), static_cast<cuuint32_t>(of.box_rows)},
                   steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, const_cast<void*>(of.matrix), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NIBBLE_CHECK(result == CUDA_SUCCESS, "a map for copies of boxes");
  return map;
}

// Asks for the map itself, which a first copy would wait for.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box that begins at a block of a row, its blocks one after the other, row after row; what lies past the
// matrix is zeros, and counts. `shared` is a multiple of 128. One instruction of one thread: bulk copies that
// lanes order, each its own, are ordered one after the other, some 60 cycles each.
__device__ __forceinline__ void box_copy_to_shared(void* shared, const TensorMap& map, int block, int row,
                                                   std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {0, %2, %3}], "
      "[%4];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(block), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The same of what nobody reads again soon, as bulk_copy_once_to_shared (async_copy.cuh).
__device__ __forceinline__ void box_copy_once_to_shared(void* shared, const TensorMap& map, int block,
                                                        int row, std::uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 leaves_first;\n"
      "createpolicy.fractional.L2::evict_first.b64 leaves_first, 1.0;\n"
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {0, %2, %3}], [%4], leaves_first;\n"
      "}" ::"r"(shared_address(shared)),
      "l"(&map), "r"(block), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The first of them into every block of the cluster whose bit is in `ranks`, as bulk_copy_to_blocks
// (cluster.cuh).
__device__ __forceinline__ void box_copy_to_blocks(void* shared, const TensorMap& map, int block, int row,
                                                   std::uint64_t* barrier, unsigned ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {0, %2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(block), "r"(row), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

}  // namespace nibble::ptx
