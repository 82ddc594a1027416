// Rows of projections -> the rule's inputs: short convolution, silu, unit keys and queries, gates. A warp a
// head of a row, over several rows in turn, whose taps it finds in the first-level cache. Bytes: 8 a channel
// and row.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int input_warps = 4;
constexpr int most_rows_a_warp = 8;

// A lane's channels of a head: so many neighbours.
template <int dims>
struct HeadChannels {
  static constexpr int count = dims % 128 == 0 ? 4 : 1;
  static_assert(dims <= 32 * count);
  float x[count];

  __device__ __forceinline__ static bool has(int lane) { return lane * count < dims; }
  // channel: the head's first; column: where a row of projections has it.
  __device__ __forceinline__ void begin(const DeltaKernelArgs& args, int channel, int column, int lane) {
    channel_ = channel;
    column_ = column;
    lane_ = lane;
#pragma unroll
    for (int i = 0; i < delta_cuda_taps; ++i) {
      const int tap = args.taps - delta_cuda_taps + i;
      fetch(weights_[i],
            tap < 0 ? nullptr : args.convolution + std::ptrdiff_t{tap} * args.channels + channel);
    }
  }
  // The inputs ahead of a row; zeros for those that nothing has.
  __device__ __forceinline__ void go_to(const DeltaKernelArgs& args, const StateRowsCuda& rows, int row) {
    const int position = rows.first_position + row - rows.row_begin;
    const float* const kept = in_slot(args.slots.inputs, args.slot_bytes, rows.slot) + channel_;
#pragma unroll
    for (int i = 0; i < delta_cuda_taps - 1; ++i) {
      const int back = delta_cuda_taps - 1 - i, at = position - back;
      const float* from = nullptr;
      if (back < args.taps && at >= 0)
        from = at >= rows.first_position ? projected(args, row - back)
                                         : kept + std::ptrdiff_t{at % (args.taps - 1)} * args.channels;
      fetch(inputs_[i], from);
    }
    fetch_row(args, row);
  }
  __device__ __forceinline__ void fetch_row(const DeltaKernelArgs& args, int row) {
    fetch(inputs_[delta_cuda_taps - 1], projected(args, row));
  }
  // x of the row whose input came last; the next one's may be fetched then.
  __device__ __forceinline__ void convolve() {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      x[i] = 0;
#pragma unroll
      for (int tap = 0; tap < delta_cuda_taps; ++tap) x[i] = fmaf(weights_[tap][i], inputs_[tap][i], x[i]);
#pragma unroll
      for (int tap = 1; tap < delta_cuda_taps; ++tap) inputs_[tap - 1][i] = inputs_[tap][i];
    }
  }
  __device__ __forceinline__ void activate() {
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = delta_silu_of(x[i]);
  }

  __device__ __forceinline__ void normalise(float further) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) squares = fmaf(x[i], x[i], squares);
    const float scale = ptx::inverse_root_fast(sum_of_lanes(squares) + 1e-6f);
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], scale), further);
  }

  __device__ __forceinline__ void store(float* to, int lane) const {
    if (!has(lane)) return;
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
    else
      to[lane] = x[0];
  }
  // As terms of products: the row of its chunk.
  __device__ __forceinline__ void store_terms(float* to, int row, int lane) const {
    using Row = KeyRows<dims>;
    if (!has(lane)) return;
    const auto place = [&](bool low) {
      return to + 4 * unit_place<Row::units>(row, (low ? Row::units / 2 : 0) + lane * count / 8);
    };
    if constexpr (count == 4) {
      const TermPair first = terms_of(x[0], x[1]), second = terms_of(x[2], x[3]);
      reinterpret_cast<uint2*>(place(false))[lane % 2] = make_uint2(first.high, second.high);
      reinterpret_cast<uint2*>(place(true))[lane % 2] = make_uint2(first.low, second.low);
    } else {
      const TermPair terms = terms_of(x[0], 0);
      reinterpret_cast<std::uint16_t*>(place(false))[lane % 8] = static_cast<std::uint16_t>(terms.high);
      reinterpret_cast<std::uint16_t*>(place(true))[lane % 8] = static_cast<std::uint16_t>(terms.low);
    }
  }

 private:
  __device__ __forceinline__ const float* projected(const DeltaKernelArgs& args, int row) const {
    return args.projected + std::ptrdiff_t{row} * args.projected_stride + column_;
  }
  __device__ __forceinline__ void fetch(float (&to)[count], const float* from) const {
    const bool is_there = from != nullptr && has(lane_);
    if constexpr (count == 4) {
      float4 four = make_float4(0, 0, 0, 0);
      if (is_there) four = *reinterpret_cast<const float4*>(from + 4 * lane_);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = is_there ? from[lane_] : 0;
    }
  }

  int channel_, column_, lane_;
  float weights_[delta_cuda_taps][count] = {}, inputs_[delta_cuda_taps][count] = {};  // by tap, its own last
};

__device__ __forceinline__ void find_gates(const DeltaKernelArgs& args, int row, int head) {
  const float* const gates =
      args.gates + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.gates_stride);
  const int key_head = head / args.served(), within = head % args.served();
  const float a = gates[column_of(args.columns.a, key_head, within)],
              b = gates[column_of(args.columns.b, key_head, within)];
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.value_heads) +
                         static_cast<std::size_t>(head);
  args.decays[at] = -static_cast<double>(args.rate[head]) *
                    softplus_of(static_cast<double>(a) + static_cast<double>(args.bias[head]));
  args.betas[at] = delta_sigmoid_of(b);
}

// Rows of a step that a warp takes in turn.
struct RowsInTurn {
  int first, past;
};
// One head's. put(channels, row, position): of each row, by then convolved.
template <int dims, class Put>
__device__ __forceinline__ void take_rows(const DeltaKernelArgs& args, const RowsInTurn& turn, int channel,
                                          int column, int lane, const Put& put) {
  HeadChannels<dims> channels;
  channels.begin(args, channel, column, lane);
  StateRowsCuda rows;
  int before = -1;  // sequence of the row before
#pragma unroll 1
  for (int row = turn.first; row < turn.past; ++row) {
    const int sequence = args.step.sequence_of_row[row];
    if (sequence >= 0 && sequence != before) {
      rows = args.step.of_sequence[sequence];
      channels.go_to(args, rows, row);
    }
    before = sequence;
    if (sequence < 0) continue;
    channels.convolve();
    if (row + 1 < turn.past) channels.fetch_row(args, row + 1);
    channels.activate();
    put(channels, row, rows.first_position + row - rows.row_begin);
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
    for (int row = turn.first; row < turn.past; ++row) {
      if (of_gate < args.value_heads && args.step.sequence_of_row[row] >= 0) find_gates(args, row, of_gate);
    }
  } else if (head < 2 * args.key_heads) {
    const bool of_queries = head < args.key_heads;
    const int key_head = of_queries ? head : head - args.key_heads;
    take_rows<key_dim>(args, turn, head * key_dim,
                       column_of(of_queries ? args.columns.q : args.columns.k, key_head, 0), lane,
                       [&](HeadChannels<key_dim>& channels, int row, int position) {
                         channels.normalise(of_queries ? 1.0f / sqrtf(static_cast<float>(key_dim)) : 1.0f);
                         channels.store_terms(out(row) + head * key_dim, position % delta_chunk, lane);
                       });
  } else {
    const int value_head = head - 2 * args.key_heads;
    const int channel = 2 * args.keys(key_dim) + value_head * value_dim;
    take_rows<value_dim>(
        args, turn, channel,
        column_of(args.columns.v, value_head / args.served(), value_head % args.served()), lane,
        [&](HeadChannels<value_dim>& channels, int row, int) { channels.store(out(row) + channel, lane); });
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
