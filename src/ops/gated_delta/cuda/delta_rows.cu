// Sequences of one row, a block a head of values of a sequence, from the row's projections to the output's
// input: with the sums and so the bits of delta_inputs, delta_products, delta_chunks and delta_norm.
//
// Bytes of a row and head of 128 x 128: the state's 64 KB, which warps hold in registers, sixteen columns
// each; up to 63 rows of keys and updates of 1 KB together, and the convolution's 10 KB, which lie in shared
// memory. All of it is asked for before the kernel ahead has ended: only this step's row is new. It is asked
// for at once: nothing that is used later is loaded later. FLOPs are few but where a chunk ends, once in 64
// rows.
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_heads.cuh"
#include "ops/gated_delta/cuda/delta_keep.cuh"
#include "ops/gated_delta/cuda/delta_norm.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// A head's filter, and the inputs that it lies over at the row, whose own is the last.
template <int dims>
struct alignas(16) HeadFilter {
  static constexpr int dimensions = dims;
  float weights[delta_cuda_taps][dims], inputs[delta_cuda_taps][dims];

  __device__ __forceinline__ const float* row() const { return inputs[delta_cuda_taps - 1]; }
};

template <int key_dim, int value_dim>
struct alignas(128) RowsShared {
  uint4 keys[delta_chunk * KeyRows<key_dim>::units];
  uint4 query[KeyRows<key_dim>::units];
  float updates[delta_chunk * value_dim];
  uint4 products[ProductRow::units];  // of the row
  HeadFilter<key_dim> of_query, of_key;
  HeadFilter<value_dim> of_value;
  float values[value_dim], out[value_dim];
  float out_gates[value_dim], norm[value_dim];
  double sums[delta_chunk];  // of g
  double sum_before;  // the row before the row's, 0 of a chunk's first; of the thread that finds the gates
  float beta;
};

template <int key_dim, int value_dim>
class DeltaRow {
  using Keys = KeyRows<key_dim>;
  static constexpr int steps = Keys::steps;
  static constexpr int tiles = (value_dim + 15) / 16;
  // Who convolves what, and who finds the gates.
  static constexpr int query_warp = 0, key_warp = 1, value_warp = 2, gate_warp = 3;

 public:
  static constexpr int warps = tiles > delta_blocks ? tiles : delta_blocks, threads = warps * 32;
  using Shared = RowsShared<key_dim, value_dim>;

  __device__ DeltaRow(const DeltaKernelArgs& args, Shared& shared, const StateRowsCuda& rows, int head)
      : args_(args),
        shared_(shared),
        rows_(rows),
        head_(head),
        key_head_(head / args.served()),
        p_(rows.first_position % delta_chunk),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(ptx::warp_of_block()),
        column_(warp_ * 16 + lane_ / 4) {}

  // What earlier steps have left, and what every row needs; on its way when it returns.
  __device__ void begin() {
    with_own_filter([&](auto& filter, const InputChannels& channels) { copy_filter(filter, channels); });
    if (warp_ == gate_warp) {
      copy_floats<value_dim>(shared_.norm, args_.norm);
      if (lane_ == 0) shared_.sum_before = p_ == 0 ? 0.0 : kept_sum(p_ - 1);
    }
    const float* const state = state_of(args_.slots.state, args_.slot_bytes, rows_.slot);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        state_[step][second] = make_float4(0, 0, 0, 0);
        if (rows_.first_position >= delta_chunk && has(second))
          state_[step][second] =
              *reinterpret_cast<const float4*>(state + kept_place(steps, group(second), step, lane_));
      }
    }
    const float* const keys = kept_keys();
    for (int at = thread_; at < p_ * Keys::units; at += threads) {
      const int j = at / Keys::units, unit = at % Keys::units;
      ptx::copy_to_shared(shared_.keys + at, keys + j * args_.keys(key_dim) + 4 * unit);
    }
    for (int at = thread_; at < value_dim / 8 * delta_blocks * 32; at += threads) {
      if (at / 32 % delta_blocks * delta_block < p_)
        ptx::copy_to_shared(shared_.updates + 4 * at, kept_updates() + 4 * at);
    }
    for (int j = thread_; j < p_; j += threads) shared_.sums[j] = kept_sum(j);
  }

  __device__ void run() {
    take_row();
    __syncthreads();  // the row's inputs of the rule are there, and what begin() asked for
    float sums[1][4] = {};
    read(sums);
    __syncthreads();  // products with the rows ahead are there
    if (warp_ < tiles) find_update(sums);
    __syncthreads();  // o is there
    if (warp_ == 0) {
      HeadOut<value_dim> out;
      out.load({.x = shared_.out, .gates = shared_.out_gates, .norm = shared_.norm}, rows_.row_begin, head_,
               lane_);
      out.put(args_);
    }
    if (p_ == delta_chunk - 1 && warp_ < tiles) bring_forward();
    keep();
  }

 private:
  __device__ __forceinline__ bool has(int second) const { return column_ + 8 * second < value_dim; }
  __device__ __forceinline__ int group(int second) const { return column_ / 8 + second; }

  __device__ float* state_of(float* of_first, std::int64_t bytes, int slot) const {
    return in_slot(of_first, bytes, slot) + head_ * (key_dim * value_dim);
  }
  __device__ float* kept_keys() const {
    return in_slot(args_.slots.keys, args_.slot_bytes, rows_.slot) + key_head_ * key_dim;
  }
  __device__ float* kept_updates() const {
    return in_slot(args_.slots.updates, args_.slot_bytes, rows_.slot) + head_ * (delta_chunk * value_dim);
  }
  __device__ double& kept_sum(int j) const {
    return in_slot(args_.slots.decays, args_.slot_bytes, rows_.slot)[j * args_.value_heads + head_];
  }
  // By a warp.
  template <int dims>
  __device__ __forceinline__ void copy_floats(float* to, const float* from) const {
    using Channels = HeadChannels<dims>;
    if (!Channels::has(lane_)) return;
    if constexpr (Channels::count == 4)
      ptx::copy_to_shared(to + 4 * lane_, from + 4 * lane_);
    else
      to[lane_] = from[lane_];
  }
  template <int dims>
  __device__ __forceinline__ void clear_floats(float* to) const {
    for (int at = lane_; at < dims; at += 32) to[at] = 0;
  }

  // Calls run with the filter of which the warp convolves, and its channels; a warp that does not: not at
  // all.
  template <class Run>
  __device__ __forceinline__ void with_own_filter(const Run& run) {
    if (warp_ == query_warp) run(shared_.of_query, query_channels<key_dim>(args_, key_head_));
    if (warp_ == key_warp) run(shared_.of_key, key_channels<key_dim>(args_, key_head_));
    if (warp_ == value_warp) run(shared_.of_value, value_channels<key_dim, value_dim>(args_, head_));
  }
  // But for the row's own input.
  template <int dims>
  __device__ __forceinline__ void copy_filter(HeadFilter<dims>& to, const InputChannels& channels) const {
#pragma unroll
    for (int tap = 0; tap < delta_cuda_taps; ++tap) {
      const float* const weights = tap_weights(args_, tap, channels.channel);
      if (weights == nullptr)
        clear_floats<dims>(to.weights[tap]);
      else
        copy_floats<dims>(to.weights[tap], weights);
      if (tap == delta_cuda_taps - 1) continue;
      const int back = delta_cuda_taps - 1 - tap, position = rows_.first_position - back;
      if (back >= args_.taps || position < 0)
        clear_floats<dims>(to.inputs[tap]);
      else
        copy_floats<dims>(to.inputs[tap], kept_input(args_, rows_.slot, position, channels.channel));
    }
  }

  // The row's query and key, values, decay and beta.
  __device__ void take_row() {
    with_own_filter([&](auto& filter, const InputChannels& channels) {
      copy_floats<std::decay_t<decltype(filter)>::dimensions>(
          filter.inputs[delta_cuda_taps - 1],
          args_.projected + std::ptrdiff_t{rows_.row_begin} * args_.projected_stride + channels.column);
    });
    if (warp_ == gate_warp) {
      copy_floats<value_dim>(shared_.out_gates, HeadOut<value_dim>::gates_of(args_, rows_.row_begin, head_));
      if (lane_ == 0) {
        const HeadGates gates = gates_of(args_, rows_.row_begin, head_);
        shared_.sums[p_] = shared_.sum_before + gates.decay;
        shared_.beta = gates.beta;
      }
    }
    ptx::await_copies_to_shared();
    __syncwarp();  // a warp has copied what it reads
    if (warp_ == query_warp) {
      HeadChannels<key_dim> query = convolved(shared_.of_query);
      query.normalise(HeadChannels<key_dim>::query_length());
      query.store_terms(shared_.query, p_, lane_);
    }
    if (warp_ == key_warp) {
      HeadChannels<key_dim> key = convolved(shared_.of_key);
      key.normalise(1);
      key.store_terms(shared_.keys + p_ * Keys::units, p_, lane_);
    }
    if (warp_ == value_warp) convolved(shared_.of_value).store(shared_.values, lane_);
  }
  template <int dims>
  __device__ __forceinline__ HeadChannels<dims> convolved(const HeadFilter<dims>& filter) const {
    using Channels = HeadChannels<dims>;
    typename Channels::Taps weights, inputs;
#pragma unroll
    for (int tap = 0; tap < delta_cuda_taps; ++tap) {
      Channels::fetch(weights[tap], filter.weights[tap], lane_);
      Channels::fetch(inputs[tap], filter.inputs[tap], lane_);
    }
    Channels channels;
    channels.convolve(weights, inputs);
    channels.activate();
    return channels;
  }

  // The row's key and query, as columns 0 and 1 of eight: in lanes 4g + t for g below 2; others are zeros.
  __device__ __forceinline__ ColumnTerms row_columns(int step) const {
    const auto word = [&](int of_row) -> std::uint32_t {
      const uint4* const row = lane_ / 4 == 0 ? shared_.keys + p_ * Keys::units : shared_.query;
      const uint4* const four = row + unit_place<Keys::units>(p_, of_row / 4);
      return lane_ / 4 > 1 ? 0 : reinterpret_cast<const std::uint32_t*>(four)[of_row % 4];
    };
    const int first = 8 * step + lane_ % 4, low = key_dim / 2;
    return {{word(first), word(first + 4)}, {word(low + first), word(low + first + 4)}};
  }

  // S^T k and S^T q of this warp's columns; and k_j . k and k_j . q of some eights of rows.
  __device__ __forceinline__ void read(float (&sums)[1][4]) {
    static_assert(delta_chunk / 8 <= 2 * warps);
    constexpr bool have_two = delta_chunk / 8 > warps;
    const int first = warp_, second = warp_ + warps;  // eights
    const bool has_first = first / 2 <= p_ / delta_block,
               has_second = have_two && second / 2 <= p_ / delta_block;
    float products[2][1][4] = {};
    PartedSums<1> parts;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const ColumnTerms columns[1] = {row_columns(step)};
      // They are rows 0 and 1 likewise.
      const RowTerms rows{make_uint4(columns[0].high[0], 0, columns[0].high[1], 0),
                          make_uint4(columns[0].low[0], 0, columns[0].low[1], 0)};
      if (has_first) {
        const ColumnTerms keys[1] = {Keys::columns(shared_.keys, first, step, lane_)};
        multiply_terms(products[0], rows, keys);
      }
      if (has_second) {
        const ColumnTerms keys[1] = {Keys::columns(shared_.keys, second, step, lane_)};
        multiply_terms(products[1], rows, keys);
      }
      parts.multiply(row_terms(state_[step][0], state_[step][1]), columns);
    }
    parts.put(sums);
    if (has_first) leave(first, products[0][0]);
    if (has_second) leave(second, products[1][0]);
  }

  // What the row leaves of the products with eight rows, as delta_products does.
  __device__ void leave(int eight, const float (&products)[4]) {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(shared_.products);
    const int g = lane_ / 4, t = lane_ % 4, j = 8 * eight + 2 * t;
    if (g > 1) return;
    const bool of_query = g == 1;
    float left[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      left[i] = 0;
      if (j + i < p_ || (of_query && j + i == p_)) {
        left[i] = __fmul_rn(decay_of(shared_.sums[p_] - shared_.sums[j + i]), products[i]);
        if (!of_query) left[i] = -left[i];
      }
    }
    if (!of_query && eight / 2 == p_ / delta_block) {
      reinterpret_cast<float2*>(shared_.products + ProductRow::own_unit(j % delta_block / 4))[t % 2] =
          make_float2(left[0], left[1]);
      return;
    }
    const TermPair terms = terms_of(left[0], left[1]);
    const int unit = (of_query ? ProductRow::with_query : ProductRow::with_key) + eight;
    pairs[4 * unit + t] = terms.high;
    pairs[4 * (unit + ProductRow::low) + t] = terms.low;
  }

  // Columns 0 and 1: the row's products with keys and queries of a block.
  __device__ __forceinline__ ColumnTerms product_columns(int block, bool with_keys) const {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(shared_.products);
    const bool of_key = lane_ / 4 == 0, is_read = of_key ? with_keys : lane_ / 4 == 1;
    const int first = (of_key ? ProductRow::with_key : ProductRow::with_query) * 4 + 8 * block + lane_ % 4;
    const int low = first + ProductRow::low * 4;
    if (!is_read) return {};
    return {{words[first], words[first + 4]}, {words[low], words[low + 4]}};
  }
  // Updates of a block's rows up to p, of this lane's columns.
  __device__ __forceinline__ RowTerms update_rows(int block) const {
    float4 of_column[2];
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      of_column[second] = make_float4(0, 0, 0, 0);
      if (!has(second)) continue;
      float4& four = of_column[second];
      four = *reinterpret_cast<const float4*>(shared_.updates +
                                              kept_place(delta_blocks, group(second), block, lane_));
      const int j = delta_block * block + lane_ % 4 * 2;
      if (j > p_) four.x = 0;
      if (j + 1 > p_) four.y = 0;
      if (j + 8 > p_) four.z = 0;
      if (j + 9 > p_) four.w = 0;
    }
    return row_terms(of_column[0], of_column[1]);
  }

  // u and o of this warp's columns: sums of column g stand in lane 4g, of its key and its query.
  __device__ void find_update(float (&sums)[1][4]) {
    const float decay = decay_of(shared_.sums[p_]);
    const bool has_sums = lane_ % 4 == 0;
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      float& of_update = sums[0][2 * second];
      float& of_out = sums[0][2 * second + 1];
      const float value = has_sums && has(second) ? shared_.values[column_ + 8 * second] : 0;
      of_update = fmaf(-decay, of_update, value);
      of_out = __fmul_rn(decay, of_out);
    }
    const int block = p_ / delta_block;
#pragma unroll 1
    for (int before = 0; before < block; ++before) {
      const ColumnTerms columns[1] = {product_columns(before, true)};
      multiply_terms(sums, update_rows(before), columns);
    }
    // Lane 4g + 1 goes on with column g + 8.
    const float of_second = __shfl_sync(0xffffffffu, sums[0][2], lane_ / 4 * 4);
    const int second = lane_ % 4, column = column_ + 8 * second;
    if (second < 2 && column < value_dim) {
      float sum = second == 0 ? sums[0][0] : of_second;
      const auto factor = [&](int j) {
        return reinterpret_cast<const float*>(shared_.products + ProductRow::own_unit(j / 4))[j % 4];
      };
#pragma unroll 4
      for (int j = 0; j < p_ % delta_block; ++j)
        sum = fmaf(factor(j), shared_.updates[kept_update_place(column, delta_block * block + j)], sum);
      const float update = __fmul_rn(shared_.beta, sum);
      shared_.updates[kept_update_place(column, p_)] = update;
      if (p_ < delta_chunk - 1) kept_updates()[kept_update_place(column, p_)] = update;
    }
    __syncwarp();  // the row's updates are there
    const ColumnTerms columns[1] = {product_columns(block, false)};
    multiply_terms(sums, update_rows(block), columns);
    if (!has_sums) return;
    if (has(0)) shared_.out[column_] = sums[0][1];
    if (has(1)) shared_.out[column_ + 8] = sums[0][3];
  }

  // S to the border behind the chunk, as delta_chunks does.
  __device__ void bring_forward() {
    const double last = shared_.sums[delta_chunk - 1];
    RowTerms updates[delta_blocks];
#pragma unroll
    for (int block = 0; block < delta_blocks; ++block) {
      const double* const sums = shared_.sums + delta_block * block + lane_ % 4 * 2;
      const float left[4] = {decay_of(last - sums[0]), decay_of(last - sums[1]), decay_of(last - sums[8]),
                             decay_of(last - sums[9])};
      float4 of_column[2];
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        float4& four = of_column[second];
        four = make_float4(0, 0, 0, 0);
        if (has(second))
          four = *reinterpret_cast<const float4*>(shared_.updates +
                                                  kept_place(delta_blocks, group(second), block, lane_));
        four = make_float4(__fmul_rn(left[0], four.x), __fmul_rn(left[1], four.y), __fmul_rn(left[2], four.z),
                           __fmul_rn(left[3], four.w));
      }
      updates[block] = row_terms(of_column[0], of_column[1]);
    }
    const float decay = decay_of(last);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      float sums[2][4] = {};
#pragma unroll
      for (int block = 0; block < delta_blocks; ++block) {
        const ColumnTerms columns[2] = {Keys::turned_columns(shared_.keys, 2 * step, block, lane_),
                                        Keys::turned_columns(shared_.keys, 2 * step + 1, block, lane_)};
        multiply_terms(sums, updates[block], columns);
      }
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        float4& kept = state_[step][second];
        kept = make_float4(
            fmaf(decay, kept.x, sums[0][2 * second]), fmaf(decay, kept.y, sums[0][2 * second + 1]),
            fmaf(decay, kept.z, sums[1][2 * second]), fmaf(decay, kept.w, sums[1][2 * second + 1]));
      }
    }
    store_state(state_of(args_.slots.state, args_.slot_bytes, rows_.slot));
    if (rows_.borders == 0) return;
    const BorderState kept = args_.step.borders[rows_.borders_at];
    if (kept.position == rows_.first_position + 1)
      store_state(state_of(args_.snapshots.state, args_.snapshot_bytes, kept.slot));
  }
  __device__ void store_state(float* to) const {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (has(second))
          *reinterpret_cast<float4*>(to + kept_place(steps, group(second), step, lane_)) =
              state_[step][second];
      }
    }
  }

  // What the next step goes on from, beside states and updates. A head of keys serves several blocks: one
  // keeps it.
  __device__ void keep() {
    const bool keeps_keys = head_ % args_.served() == 0;
    if (p_ < delta_chunk - 1) {
      if (thread_ == 0) kept_sum(p_) = shared_.sums[p_];
      if (keeps_keys && thread_ < Keys::units)
        reinterpret_cast<uint4*>(kept_keys() + p_ * args_.keys(key_dim))[thread_] =
            shared_.keys[p_ * Keys::units + thread_];
    }
    const auto keep_inputs_of = [&](const auto& filter, const InputChannels& channels) {
      keep_row_inputs(args_, rows_, channels, filter.row(), thread_, threads);
    };
    if (keeps_keys) {
      keep_inputs_of(shared_.of_query, query_channels<key_dim>(args_, key_head_));
      keep_inputs_of(shared_.of_key, key_channels<key_dim>(args_, key_head_));
    }
    keep_inputs_of(shared_.of_value, value_channels<key_dim, value_dim>(args_, head_));
  }

  const DeltaKernelArgs& args_;
  Shared& shared_;
  const StateRowsCuda rows_;
  const int head_, key_head_, p_, thread_, lane_, warp_, column_;
  float4 state_[steps][2];
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(DeltaRow<key_dim, value_dim>::threads, 2)
    delta_rows(const __grid_constant__ DeltaKernelArgs args) {
  auto& shared = *reinterpret_cast<RowsShared<key_dim, value_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  DeltaRow<key_dim, value_dim> head(args, shared, rows, static_cast<int>(blockIdx.x));
  if (rows.row_count == 1) head.begin();
  ptx::grid_dependency_wait();
  if (rows.row_count == 1) head.run();
}

}  // namespace

void launch_delta_rows(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = sizeof(RowsShared<key_dim, value_dim>);
    cuda_check(cudaFuncSetAttribute(delta_rows<key_dim, value_dim>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.step.sequences)),
         .threads = DeltaRow<key_dim, value_dim>::threads,
         .shared_bytes = bytes,
         .stream = stream,
         .overlaps = true,
         .share = share_of(args.step.rows)},
        delta_rows<key_dim, value_dim>, args);
  });
}

}  // namespace nibble
