// Rows of projections -> the rule's inputs, of sequences of several rows: short convolution, silu, unit keys
// and queries, gates. A warp a head of a row, over several rows in turn. Bytes: 8 a channel and row.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_heads.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int input_warps = 4;
constexpr int most_rows_a_warp = 8;

// A head's rows in turn, whose taps it finds in the first-level cache.
template <int dims>
class HeadRows {
  static constexpr int count = lane_channels<dims>;
  static_assert(dims <= 32 * count);

 public:
  using Channels = LaneChannels<count>;
  __device__ __forceinline__ static bool has(int lane) { return lane * count < dims; }

  // channel: the head's first; column: where a row of projections has it.
  __device__ __forceinline__ HeadRows(const DeltaKernelArgs& args, int channel, int column, int lane)
      : args_(args), channel_(channel), column_(column), lane_(lane) {
#pragma unroll
    for (int tap = 0; tap < delta_cuda_taps; ++tap)
      Channels::fetch(weights_[tap], has(lane) ? tap_weights(args, tap, channel) : nullptr, lane);
  }
  // The inputs ahead of a row; zeros for those that nothing has.
  __device__ __forceinline__ void go_to(const StateRowsCuda& rows, int row) {
    const int position = rows.first_position + row - rows.row_begin;
#pragma unroll
    for (int i = 0; i < delta_cuda_taps - 1; ++i) {
      const int back = delta_cuda_taps - 1 - i, at = position - back;
      const float* from = nullptr;
      if (back < args_.taps && at >= 0)
        from = at >= rows.first_position ? projected(row - back) : kept_input(args_, rows.slot, at, channel_);
      Channels::fetch(inputs_[i], has(lane_) ? from : nullptr, lane_);
    }
    fetch_row(row);
  }
  __device__ __forceinline__ void fetch_row(int row) {
    Channels::fetch(inputs_[delta_cuda_taps - 1], has(lane_) ? projected(row) : nullptr, lane_);
  }
  // Of the row whose input came last; the next one's may be fetched then.
  __device__ __forceinline__ void convolve(Channels& to) {
    to.convolve(weights_, inputs_);
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int tap = 1; tap < delta_cuda_taps; ++tap) inputs_[tap - 1][i] = inputs_[tap][i];
    }
  }

 private:
  __device__ __forceinline__ const float* projected(int row) const {
    return args_.projected + std::ptrdiff_t{row} * args_.projected_stride + column_;
  }

  const DeltaKernelArgs& args_;
  const int channel_, column_, lane_;
  typename Channels::Taps weights_, inputs_;
};

// Where a head's channels begin, where a row of projections has them, and how long a row of them is made: 0,
// as it is.
struct InputHead {
  int channel, column;
  float length;
};

// Rows of a step that a warp takes in turn.
struct RowsInTurn {
  int first, past;
};
// One head's. put(channels, row, position): of each row, by then convolved. Sequences of one row have a
// kernel of their own.
template <int dims, class Put>
__device__ __forceinline__ void take_rows(const DeltaKernelArgs& args, const RowsInTurn& turn,
                                          const InputHead& of, int lane, const Put& put) {
  HeadRows<dims> head(args, of.channel, of.column, lane);
  typename HeadRows<dims>::Channels channels;
  for (int first = turn.first; first < turn.past;) {
    const int sequence = args.step.sequence_of_row[first];
    StateRowsCuda rows;
    if (sequence >= 0) rows = args.step.of_sequence[sequence];
    if (!has_many_delta_rows(rows.row_count)) {
      ++first;
      continue;
    }
    // The sequence's rows of the turn.
    const int past = min(turn.past, rows.row_begin + rows.row_count),
              ahead = rows.first_position - rows.row_begin;
    head.go_to(rows, first);
#pragma unroll 1
    for (int row = first; row < past; ++row) {
      head.convolve(channels);
      if (row + 1 < past) head.fetch_row(row + 1);
      channels.activate();
      if (of.length != 0) channels.normalise(of.length);
      if (HeadRows<dims>::has(lane)) put(channels, row, ahead + row);
    }
    first = past;
  }
}
__device__ __forceinline__ void take_gates(const DeltaKernelArgs& args, const RowsInTurn& turn, int head) {
  for (int row = turn.first; row < turn.past; ++row) {
    const int sequence = args.step.sequence_of_row[row];
    if (sequence < 0 || !has_many_delta_rows(args.step.of_sequence[sequence].row_count)) continue;
    const HeadGates gates = gates_of(args, row, ValueHead::at(args, head));
    const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.value_heads) +
                           static_cast<std::size_t>(head);
    args.decays[at] = gates.decay;
    args.betas[at] = gates.beta;
  }
}

// Warps of a row: heads of queries, of keys, of values, then the gates of 32 heads of values each.
template <int key_dim, int value_dim>
__global__ void __launch_bounds__(input_warps * 32)
    delta_inputs(const __grid_constant__ DeltaKernelArgs args, int rows_a_warp) {
  ptx::grid_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * input_warps + static_cast<int>(threadIdx.x) / 32;
  const int heads = 2 * args.key_heads + args.value_heads, all = heads + (args.value_heads + 31) / 32;
  const int first_row = warp / all * rows_a_warp, head = warp % all;
  const RowsInTurn turn{first_row, min(first_row + rows_a_warp, args.step.rows)};
  const auto out = [&](int row) { return args.qkv + std::ptrdiff_t{row} * args.channels; };
  ptx::grid_dependency_wait();
  if (head >= heads) {
    const int of_gate = (head - heads) * 32 + lane;
    if (of_gate < args.value_heads) take_gates(args, turn, of_gate);
  } else if (head < 2 * args.key_heads) {
    const bool of_queries = head < args.key_heads;
    const int key_head = of_queries ? head : head - args.key_heads;
    const float length = of_queries ? query_length<key_dim>() : 1.0f;
    take_rows<key_dim>(args, turn,
                       {.channel = head * key_dim,
                        .column = column_of(of_queries ? args.columns.q : args.columns.k, {key_head, 0}),
                        .length = length},
                       lane, [&](const auto& channels, int row, int position) {
                         channels.template store_terms<KeyRows<key_dim>::units>(
                             reinterpret_cast<uint4*>(out(row) + head * key_dim), position % delta_chunk,
                             lane);
                       });
  } else {
    const int value_head = head - 2 * args.key_heads;
    const int channel = 2 * args.keys(key_dim) + value_head * value_dim;
    take_rows<value_dim>(
        args, turn,
        {.channel = channel,
         .column = column_of(args.columns.v, ValueHead::at(args, value_head)),
         .length = 0},
        lane, [&](const auto& channels, int row, int) { channels.store(out(row) + channel, lane); });
  }
}

}  // namespace

void launch_delta_inputs(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  const int heads = 2 * args.key_heads + args.value_heads + (args.value_heads + 31) / 32;
  const int rows_a_warp = args.step.rows >= 512 ? most_rows_a_warp : 1;
  const int warps = (args.step.rows + rows_a_warp - 1) / rows_a_warp * heads;
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    launch_kernel({.blocks = dim3(static_cast<unsigned>((warps + input_warps - 1) / input_warps)),
                   .threads = input_warps * 32,
                   .stream = stream,
                   .overlaps = true,
                   .share = share_of(args.step.rows)},
                  delta_inputs<key_dim, value_dim>, args, rows_a_warp);
  });
}

}  // namespace nibble
