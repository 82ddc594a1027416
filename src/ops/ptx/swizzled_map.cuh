// Copies of tiles for wgmma (warpgroup_swizzled.cuh) from a matrix of bfloat16 in memory, and the maps that
// say where its rows lie.
#pragma once

#include "ops/ptx/tensor_map.cuh"

namespace nibble::ptx {

inline constexpr int map_tile_rows = 64, map_tile_columns = 64, map_tile_bytes = 64 * 64 * 2;

// rows x columns, the latter a multiple of 8; at a multiple of 16. To be handed to a kernel by value, as
// __grid_constant__.
inline TensorMap swizzled_map(const void* matrix, int columns, int rows) {
  static const auto encode = [] {  // of the driver, which nothing links
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  TensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {map_tile_columns, map_tile_rows}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NIBBLE_CHECK(result == CUDA_SUCCESS, "a map for copies of tiles");
  return map;
}

// The tile that begins at a column of a row; what lies past the matrix is zeros, and counts. `shared` is a
// multiple of 1,024. By one thread.
__device__ __forceinline__ void tile_copy_to_shared(void* shared, const TensorMap& map, int column, int row,
                                                    std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace nibble::ptx
