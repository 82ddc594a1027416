// Rows of projections -> the rule's inputs: short convolution, silu, unit keys and queries, gates. A warp a
// head of a row, over several rows in turn, whose taps it finds in the first-level cache. Bytes: 8 a channel
// and row.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_step.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int input_warps = 4;
constexpr int most_rows_a_warp = 8;

// A lane's channels of a head: dimension lane + 32 i is value i.
template <int dims>
struct HeadChannels {
  static constexpr int count = (dims + 31) / 32;
  float x[count];

  __device__ __forceinline__ static bool has(int lane, int i) {
    return dims % 32 == 0 || lane + 32 * i < dims;
  }

  // channel: the head's first; column: where a row of projections has it.
  __device__ __forceinline__ void convolve(const DeltaKernelArgs& args, int row, const StateRowsCuda& rows,
                                           int channel, int column, int lane) {
    const int position = rows.first_position + row - rows.row_begin;
    const float* const inputs = in_slot(args.slots.inputs, args.slot_bytes, rows.slot);
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = 0;
#pragma unroll 4
    for (int tap = max(0, args.taps - 1 - position); tap < args.taps; ++tap) {
      const int back = args.taps - 1 - tap, of_tap = position - back;
      const float* const from =
          of_tap >= rows.first_position
              ? args.projected +
                    static_cast<std::size_t>(row - back) * static_cast<std::size_t>(args.projected_stride) +
                    column
              : inputs +
                    static_cast<std::size_t>(of_tap % (args.taps - 1)) *
                        static_cast<std::size_t>(args.channels) +
                    channel;
      const float* const weight = args.convolution +
                                  static_cast<std::size_t>(tap) * static_cast<std::size_t>(args.channels) +
                                  channel;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (has(lane, i)) x[i] = fmaf(weight[lane + 32 * i], from[lane + 32 * i], x[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = delta_silu_of(x[i]);
  }

  __device__ __forceinline__ void normalise(float further, int lane) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (has(lane, i)) squares = fmaf(x[i], x[i], squares);
    }
    const float scale = 1.0f / sqrtf(sum_of_lanes(squares) + 1e-6f);
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], scale), further);
  }

  __device__ __forceinline__ void store(float* to, int lane) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (has(lane, i)) to[lane + 32 * i] = x[i];
    }
  }
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

// Warps of a row: heads of queries, of keys, of values, then the gates of 32 heads of values each.
template <int key_dim, int value_dim>
__global__ void __launch_bounds__(input_warps * 32)
    delta_inputs(const __grid_constant__ DeltaKernelArgs args, int rows_a_warp) {
  ptx::grid_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * input_warps + static_cast<int>(threadIdx.x) / 32;
  const int heads = 2 * args.key_heads + args.value_heads, all = heads + (args.value_heads + 31) / 32;
  const int first_row = warp / all * rows_a_warp, head = warp % all;
  const int past_row = min(first_row + rows_a_warp, args.step.rows);
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int row = first_row; row < past_row; ++row) {
    const int sequence = args.step.sequence_of_row[row];
    if (sequence < 0) continue;
    if (head >= heads) {
      const int of_gate = (head - heads) * 32 + lane;
      if (of_gate < args.value_heads) find_gates(args, row, of_gate);
      continue;
    }
    const StateRowsCuda rows = args.step.of_sequence[sequence];
    float* const out = args.qkv + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.channels);
    if (head < 2 * args.key_heads) {
      const bool of_queries = head < args.key_heads;
      const int key_head = of_queries ? head : head - args.key_heads;
      HeadChannels<key_dim> channels;
      channels.convolve(args, row, rows, head * key_dim,
                        column_of(of_queries ? args.columns.q : args.columns.k, key_head, 0), lane);
      channels.normalise(of_queries ? 1.0f / sqrtf(static_cast<float>(key_dim)) : 1.0f, lane);
      channels.store(out + head * key_dim, lane);
    } else {
      const int value_head = head - 2 * args.key_heads;
      const int channel = 2 * args.keys(key_dim) + value_head * value_dim;
      HeadChannels<value_dim> channels;
      channels.convolve(args, row, rows, channel,
                        column_of(args.columns.v, value_head / args.served(), value_head % args.served()),
                        lane);
      channels.store(out + channel, lane);
    }
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
