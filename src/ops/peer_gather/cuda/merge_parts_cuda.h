// What ranks gather where they cannot write each other's memory: each puts its own into a buffer of zeros,
// and a merge (comm/cuda/rank_merge.h) gives all of it to all. Every rank launches the same calls in the same
// order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"
#include "comm/cuda/rank_merge.h"

namespace nibble {

// Columns of a matrix, each rank's its own. Sizes are in bytes and multiples of 4.
struct OwnColumns {
  const void* from = nullptr;  // [rows, bytes]
  void* to = nullptr;          // [rows, row_bytes], of which they begin at `first`; all else is made zero
  int rows = 0;
  std::size_t row_bytes = 0;
  std::size_t first = 0, bytes = 0;  // bytes 0: this rank has none
};
Status place_own_columns_cuda(const OwnColumns& own, cudaStream_t stream);

inline Status clear_cuda(void* at, std::size_t bytes, cudaStream_t stream) {
  return place_own_columns_cuda({.to = at, .rows = 1, .row_bytes = bytes}, stream);
}

// Columns of all ranks, to all.
inline Status merge_columns_cuda(const RankMerge& merge, const OwnColumns& own, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(place_own_columns_cuda(own, stream));
  return merge.merge(own.to, static_cast<std::size_t>(own.rows) * own.row_bytes, stream);
}

}  // namespace nibble
