// What a step has of a chunk, and how the kernels lay out what they keep of a sequence.
#pragma once

#include "ops/cuda/host_device.h"
#include "ops/gated_delta/cuda/delta_step.cuh"

namespace nibble {

inline constexpr int delta_block = 16, delta_blocks = delta_chunk / delta_block;  // rows of a product

// States and updates lie as rows of products do in registers (ptx::mma_m16n8k16_bf16): rows are eight columns
// of a head's values, k the keys' dimensions or the chunk's rows, sixteen in a step. Lane 4g + t has of
// column g those at 2t, 2t + 1, 2t + 8 and 2t + 9.
__device__ __forceinline__ int kept_place(int steps, int group, int step, int lane) {
  return ((group * steps + step) * 32 + lane) * 4;
}
__device__ __forceinline__ int kept_update_place(int column, int j) {
  return kept_place(delta_blocks, column / 8, j / delta_block, column % 8 * 4 + j % 8 / 2) + j % 2 +
         j % delta_block / 8 * 2;
}

// From so many rows on sequences have kernels that go by chunks.
inline constexpr int delta_many_rows = 2;
NIBBLE_HOST_DEVICE constexpr bool has_many_delta_rows(int rows) { return rows >= delta_many_rows; }

// Chunks that such sequences have at most in a step.
inline int most_chunks(const DeltaStepCuda& step) {
  const int sequences =
      step.sequences < step.rows / delta_many_rows ? step.sequences : step.rows / delta_many_rows;
  return step.rows / delta_chunk + 2 * sequences;
}

// What a step has of a chunk: rows [open, past) of it.
struct ChunkRows {
  StateRowsCuda rows;
  int first_position = 0;  // of the chunk
  int open = 0, past = 0;  // 0: there is none

  __device__ std::size_t row_of(int j) const {
    return static_cast<std::size_t>(rows.row_begin + first_position + j - rows.first_position);
  }
};

__device__ __forceinline__ int first_chunk_of(const StateRowsCuda& rows) {
  return rows.first_position / delta_chunk;
}
__device__ __forceinline__ int past_chunk_of(const StateRowsCuda& rows) {
  return (rows.first_position + rows.row_count + delta_chunk - 1) / delta_chunk;
}
__device__ __forceinline__ ChunkRows chunk_of(const StateRowsCuda& rows, int chunk) {
  const int first = chunk * delta_chunk;
  return {rows, first, max(rows.first_position - first, 0),
          min(rows.first_position + rows.row_count - first, delta_chunk)};
}

// Chunk `index` of the step's, over sequences of many rows.
__device__ __forceinline__ ChunkRows chunk_at(const DeltaStepCuda& step, int index) {
  for (int i = 0; i < step.sequences; ++i) {
    const StateRowsCuda rows = step.of_sequence[i];
    if (!has_many_delta_rows(rows.row_count)) continue;
    const int first = first_chunk_of(rows), count = past_chunk_of(rows) - first;
    if (index < count) return chunk_of(rows, first + index);
    index -= count;
  }
  return {};
}

void launch_delta_products(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);
void launch_delta_chunks(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);
void launch_delta_keep(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);
void launch_delta_norm(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream);

}  // namespace nibble
