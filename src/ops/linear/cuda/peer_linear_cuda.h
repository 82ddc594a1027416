// linear for few rows of which each rank has some of the columns (attention's heads), on the GPUs of one
// process: each multiplies its chunks of K and sends the chunks' sums to all, and each adds all eight up in
// their order. So a row has the bits of linear_cuda, and a rank reads its part of the weights alone.
//
// Of more rows it is shorter to gather the columns: sums are eight times as many bytes a rank as those, and
// more.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "comm/cuda/peer_room.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace nibble {

inline constexpr int peer_linear_tokens = 8;  // at most

// All pointers are to device memory.
struct PeerLinearCudaArgs {
  TokenTiles x;                // this rank's columns: as many for each rank, whole chunks
  DenseTiles weight;           // [out, in], all of it
  const Bf16* bias = nullptr;  // [out]; null: none
  float* y = nullptr;          // [x.tokens, y_stride]
  int y_stride = 0;
  // In the room: [peer_linear_floats(out)], absent (ops/cuda/absent.h) before the first launch. Between two
  // launches the ranks may run apart by one, so there are two windows, which take turns.
  float* windows = nullptr;
  std::uint32_t* steps = nullptr;  // [multiprocessors], 0 before the first launch
  std::uint32_t* stuck = nullptr;  // as LinearCudaWorkspace's
  int beside = 0;                  // as LinearCudaArgs's
};

// Whether the columns of so many ranks are whole chunks, as many each.
constexpr bool peer_linear_takes(const DenseShape& weight, int ranks) {
  if (ranks < 2 || dense_k_chunks % ranks != 0 || weight.cols % ranks != 0) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (weight.chunk_begin(rank * (dense_k_chunks / ranks)) * dense_k != rank * (weight.cols / ranks))
      return false;
  }
  return true;
}

constexpr std::size_t peer_linear_floats(const DenseShape& weight) {
  return std::size_t{2} * dense_k_chunks * peer_linear_tokens * dense_tile_rows *
         static_cast<std::size_t>(weight.tiles());
}

// Every rank launches the same calls in the same order.
Status peer_linear_cuda(const PeerRoom& room, const PeerLinearCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
