// A product whose input's columns ranks have in parts, each its own heads' outputs or a part of a
// feed-forward's width, with a matrix that every rank has whole: a mixer's output or a down projection.
//
// Every sum is one GPU's, in its order. Of few rows each rank multiplies its chunks of K and all add the
// chunks' sums (peer_linear_cuda.h), if the matrix is in bfloat16. Otherwise the columns are gathered first,
// and of many rows each rank multiplies its own (RankRows).
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/cuda/cuda_part.h"
#include "models/cuda/decoder_stream.h"
#include "models/cuda/device_matrix.h"

namespace nibble {

class GatheredProduct {
 public:
  struct Shape {
    int rows = 0;         // of the input, at most, that one call multiplies
    Run columns;          // this rank's, whole k64 blocks
    int all_columns = 0;  // of the matrix
  };

  // Takes its room; what ranks share from `place`. Without memory it only counts.
  GatheredProduct(const Shape& shape, const DecoderStream& stream, CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const;
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) { stream_.rounding = room; }

  // Where rows from `first` on, a multiple of 8, are put: token tiles of the rank's columns.
  std::uint8_t* input(int first = 0) const { return own_ + own_shape().token_bytes(first); }

  struct Factors {
    const DeviceMatrix& weight;  // [hidden, all columns]
    const Bf16* bias = nullptr;  // [hidden]; null: none
    int beside = 0;              // as LinearCudaArgs's
  };
  // -> y: [rows, hidden], of which a rank gets its own.
  Status multiply(const Factors& factors, int rows, const RankRows& own, float* y, cudaStream_t stream) const;

 private:
  DenseShape own_shape() const { return {0, columns_}; }
  DenseShape whole_shape() const { return {stream_.hidden, all_columns_}; }
  std::size_t window_bytes() const;
  // The columns of all ranks -> gathered_, of the rank's rows.
  Status gather(int rows, const RankRows& own, cudaStream_t stream) const;

  DecoderStream stream_;
  int first_column_, columns_, all_columns_;
  std::uint8_t* own_;                // token tiles of columns_
  std::uint8_t* gathered_;           // of all_columns_; own_ where this rank is alone
  std::uint8_t* windows_ = nullptr;  // GatherTokensCudaArgs's, where ranks have as many columns each
  std::uint32_t* gather_steps_ = nullptr;
  // PeerLinearCudaArgs's windows and steps, where ranks have whole chunks of the columns.
  float* sums_ = nullptr;
  std::uint32_t* sum_steps_ = nullptr;
};

}  // namespace nibble
