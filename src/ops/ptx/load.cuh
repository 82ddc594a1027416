// Loads of operands from shared memory.
#pragma once

#include <cstdint>

#include "ops/ptx/async_copy.cuh"

namespace nibble::ptx {

// Four matrices of 8 rows of 16 bytes, lane 8i + r naming row r of matrix i. Lane 4r + c gets of each the
// four bytes at 4c of row r: an operand of mma_m16n8k16_bf16.
__device__ __forceinline__ void load_matrices(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                              std::uint32_t& d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(shared_address(row))
               : "memory");
}

// The same of matrices that lie turned: lane 4r + c gets of each the pair of column r in rows 2c and 2c + 1.
__device__ __forceinline__ void load_turned_matrices(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                                     std::uint32_t& d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace nibble::ptx
