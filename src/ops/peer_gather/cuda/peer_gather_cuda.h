// What ranks of one process gather on GPUs. Every rank launches the same calls in the same order; each is one
// meeting (comm/cuda/peer_room.h), after which what all ranks sent is there. No bit of it is computed anew.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "comm/cuda/peer_room.h"

namespace nibble {

// Columns of a matrix, each rank's its own. Sizes are in bytes and multiples of 4.
struct GatherColumnsCudaArgs {
  const void* from = nullptr;  // [rows, bytes], this rank's
  std::size_t from_stride = 0;
  void* to = nullptr;  // in the room: where they lie in the first row of the whole
  std::size_t to_stride = 0;
  std::size_t bytes = 0;  // of a row; 0: this rank has none
  int rows = 0;
  int wanted_by = -1;  // the one rank that has a use for them; -1: all have
};
Status gather_columns_cuda(const PeerRoom& room, const GatherColumnsCudaArgs& args, cudaStream_t stream);

// Rows of a matrix in the room, which lie where they belong already: those of the slots whose expert is one
// of this rank's.
struct GatherProductsCudaArgs {
  float* products = nullptr;                 // [slots, hidden], in the room
  const std::int32_t* expert_ids = nullptr;  // [slots]; -1: none
  int slots = 0, hidden = 0;                 // hidden: a multiple of 4
  int first_expert = 0, experts = 0;         // this rank's
};
Status gather_products_cuda(const PeerRoom& room, const GatherProductsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
