// What the next step goes on from beside states and updates: keys of the open chunk, and the convolution's
// last inputs. By the threads of a block.
#pragma once

#include "ops/gated_delta/cuda/delta_heads.cuh"

namespace nibble {

// A step's row of a sequence's position.
__device__ __forceinline__ std::size_t row_of_position(const StateRowsCuda& rows, int position) {
  return static_cast<std::size_t>(rows.row_begin + position - rows.first_position);
}

// The open chunk's keys of a head that this step brought.
template <int key_dim>
__device__ __forceinline__ void keep_keys(const DeltaKernelArgs& args, const StateRowsCuda& rows,
                                          int key_head, int thread, int threads) {
  const int past = rows.first_position + rows.row_count, begin = past / delta_chunk * delta_chunk;
  const int first = max(begin, rows.first_position) - begin, open = past - begin;
  float* const keys = in_slot(args.slots.keys, args.slot_bytes, rows.slot) + key_head * key_dim;
  for (int at = first * key_dim + thread; at < open * key_dim; at += threads) {
    const int j = at / key_dim;
    keys[j * args.keys(key_dim) + at % key_dim] =
        args.qkv[row_of_position(rows, begin + j) * static_cast<std::size_t>(args.channels) +
                 static_cast<std::size_t>(args.keys(key_dim) + key_head * key_dim + at % key_dim)];
  }
}

// Channels of a head: where they begin, and where a row of projections has them.
struct InputChannels {
  int channel, column, dims;
};
// Their last inputs, and those before each border that is kept. A thread alone reads and writes those of a
// channel.
__device__ __forceinline__ void keep_inputs(const DeltaKernelArgs& args, const StateRowsCuda& rows,
                                            const InputChannels& of_head, int thread, int threads) {
  const int kept = args.kept_inputs, past = rows.first_position + rows.row_count;
  float* const inputs = in_slot(args.slots.inputs, args.slot_bytes, rows.slot) + of_head.channel;
  const float* const projected = args.projected + of_head.column;
  for (int at = thread; at < of_head.dims; at += threads) {
    const auto input_of = [&](int position) {
      if (position < rows.first_position) return inputs[input_row(position, kept) * args.channels + at];
      return projected[row_of_position(rows, position) * static_cast<std::size_t>(args.projected_stride) +
                       static_cast<std::size_t>(at)];
    };
    for (int i = 0; i < rows.borders; ++i) {
      const BorderState border = args.step.borders[rows.borders_at + i];
      float* const to = in_slot(args.snapshots.inputs, args.snapshot_bytes, border.slot) + of_head.channel;
      for (int position = max(0, border.position - args.taps); position < border.position; ++position)
        to[input_row(position, kept) * args.channels + at] = input_of(position);
    }
    for (int position = max(rows.first_position, past - kept); position < past; ++position)
      inputs[input_row(position, kept) * args.channels + at] = input_of(position);
  }
}
// Of a head: of its queries, its keys, or of one's values.
template <int key_dim>
__device__ __forceinline__ InputChannels query_channels(const DeltaKernelArgs& args, int key_head) {
  return {key_head * key_dim, column_of(args.columns.q, {key_head, 0}), key_dim};
}
template <int key_dim>
__device__ __forceinline__ InputChannels key_channels(const DeltaKernelArgs& args, int key_head) {
  return {args.keys(key_dim) + key_head * key_dim, column_of(args.columns.k, {key_head, 0}), key_dim};
}
template <int key_dim, int value_dim>
__device__ __forceinline__ InputChannels value_channels(const DeltaKernelArgs& args, const ValueHead& head) {
  return {2 * args.keys(key_dim) + head.index(args) * value_dim, column_of(args.columns.v, head), value_dim};
}

}  // namespace nibble
