// Behind delta_chunks: its outputs' norms and gates, a block a row, whose warps have some heads each. Behind
// all of a step's rows: what the next step goes on from that several blocks have read.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_keep.cuh"
#include "ops/gated_delta/cuda/delta_norm.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int norm_warps = 8, heads_at_once = 4, keep_threads = 128;

template <int value_dim>
__global__ void __launch_bounds__(norm_warps * 32) delta_norm(const __grid_constant__ DeltaKernelArgs args) {
  ptx::grid_launch_dependents();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  ptx::grid_dependency_wait();
  const int sequence = args.step.sequence_of_row[row];
  for (int first = ptx::warp_of_block(); first < args.value_heads; first += norm_warps * heads_at_once) {
    HeadOut<value_dim> heads[heads_at_once];
#pragma unroll
    for (int i = 0; i < heads_at_once;
         ++i) {  // whether they are wanted or not: that takes as long to find out
      const int head = min(first + i * norm_warps, args.value_heads - 1);
      heads[i].load({.x = args.mixed + static_cast<std::size_t>(row * args.value_heads + head) * value_dim,
                     .gates = HeadOut<value_dim>::gates_of(args, row, ValueHead::at(args, head)),
                     .norm = args.norm},
                    row, head, lane);
    }
    if (sequence < 0 || !has_many_delta_rows(args.step.of_sequence[sequence].row_count)) return;
#pragma unroll
    for (int i = 0; i < heads_at_once; ++i) {
      if (first + i * norm_warps < args.value_heads) heads[i].put(args);
    }
  }
}

// A block a head of keys of a sequence, with the heads of values that it serves.
template <int key_dim, int value_dim>
__global__ void __launch_bounds__(keep_threads) delta_keep(const __grid_constant__ DeltaKernelArgs args) {
  ptx::grid_launch_dependents();
  const int key_head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  ptx::grid_dependency_wait();
  if (rows.row_count <= 1) return;
  keep_keys<key_dim>(args, rows, key_head, thread, keep_threads);
  keep_inputs(args, rows, query_channels<key_dim>(args, key_head), thread, keep_threads);
  keep_inputs(args, rows, key_channels<key_dim>(args, key_head), thread, keep_threads);
  const int first = key_head * args.served;
  for (int within = 0; within < args.served; ++within)
    keep_inputs(args, rows, value_channels<key_dim, value_dim>(args, {key_head, within}), thread,
                keep_threads);
  if (!has_many_delta_rows(rows.row_count)) return;  // delta_rows has kept its sums
  const int past = rows.first_position + rows.row_count, begin = past / delta_chunk * delta_chunk;
  double* const sums = in_slot(args.slots.decays, args.slot_bytes, rows.slot);
  for (int j = max(begin, rows.first_position) - begin + thread; j < past - begin; j += keep_threads) {
    for (int head = first; head < first + args.served; ++head) {
      sums[j * args.value_heads + head] =
          args.decays[row_of_position(rows, begin + j) * static_cast<std::size_t>(args.value_heads) +
                      static_cast<std::size_t>(head)];
    }
  }
}

}  // namespace

void launch_delta_norm(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    launch_kernel({.blocks = dim3(static_cast<unsigned>(args.step.rows)),
                   .threads = norm_warps * 32,
                   .stream = stream,
                   .overlaps = true},
                  delta_norm<value_dim>, args);
  });
}

void launch_delta_keep(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(args.key_heads), static_cast<unsigned>(args.step.sequences)),
         .threads = keep_threads,
         .stream = stream,
         .overlaps = true},
        delta_keep<key_dim, value_dim>, args);
  });
}

}  // namespace nibble
