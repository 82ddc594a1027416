// Sequences of one row, a block a head of values of a sequence, from the row's projections to the output's
// input: with the sums and so the bits of delta_inputs, delta_products, delta_chunks and delta_norm.
//
// Bytes of a row and head of 128 x 128: the state's 64 KB, which warps hold in registers, sixteen columns
// each; up to 63 rows of keys and updates of 1 KB together, and the convolution's 10 KB, which lie in shared
// memory. All of it is asked for before the kernel ahead has ended: only this step's row is new. It is asked
// for at once: nothing that is used later is loaded later. FLOPs are few but where a chunk ends, once in 64
// rows.
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
  float weights[delta_cuda_taps][dims], inputs[delta_cuda_taps][dims];
};

// Parts of a row that are convolved, a warp each.
enum RowPart { row_query, row_key, row_values, row_parts };

template <int key_dim, int value_dim>
struct alignas(128) RowsShared {
  uint4 keys[delta_chunk * KeyRows<key_dim>::units];
  uint4 query[KeyRows<key_dim>::units];
  float updates[delta_chunk * value_dim];
  uint4 products[ProductRow::units];  // of the row
  HeadFilter<(key_dim > value_dim ? key_dim : value_dim)> filters[row_parts];
  float values[value_dim], out[value_dim];
  float out_gates[value_dim], norm[value_dim];
  double sums[delta_chunk];  // of g
  double sum_before;  // that of the row before, 0 of a chunk's first; for the thread that finds the gates
  float beta;
};

template <int key_dim, int value_dim>
class DeltaRow {
  using Keys = KeyRows<key_dim>;
  static constexpr int steps = Keys::steps;
  static constexpr int tiles = (value_dim + 15) / 16;

 public:
  static constexpr int warps = tiles > delta_blocks ? tiles : delta_blocks, threads = warps * 32;
  using Shared = RowsShared<key_dim, value_dim>;

  __device__ DeltaRow(const DeltaKernelArgs& args, Shared& shared, const StateRowsCuda& rows,
                      const ValueHead& head)
      : args_(args),
        shared_(shared),
        rows_(rows),
        head_(head),
        p_(rows.first_position % delta_chunk),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(ptx::warp_of_block()) {}

  // What earlier steps have left, and what every row needs; on its way when it returns.
  __device__ void begin() {
    const bool has_state = rows_.first_position >= delta_chunk;
    const float* const state =
        state_of(args_.slots.state, args_.slot_bytes, rows_.slot) + kept_first<steps>();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        state_[step][second] = make_float4(0, 0, 0, 0);
        if (has_state && has(second))
          state_[step][second] = *reinterpret_cast<const float4*>(state + kept_place(steps, second, step, 0));
      }
    }
    if (warp_ < row_parts) {
      copy_filter();
    } else if (warp_ == gate_warp) {
      copy_floats<value_dim>(shared_.norm, args_.norm);
      if (lane_ == 0) shared_.sum_before = p_ == 0 ? 0.0 : kept_sum(p_ - 1);
    }
    static_assert(threads % Keys::units == 0 && warps % delta_blocks == 0 && threads >= delta_chunk);
    const float* const keys = kept_keys() + 4 * (thread_ % Keys::units);
    for (int j = thread_ / Keys::units; j < p_; j += threads / Keys::units)
      ptx::copy_to_shared(shared_.keys + j * Keys::units + thread_ % Keys::units,
                          keys + j * args_.keys(key_dim));
    if (warp_ % delta_blocks * delta_block < p_) {  // whose updates the warp's are, in each eight columns
      const float* const updates = kept_updates();
#pragma unroll
      for (int first = 0; first < value_dim / 8 * delta_blocks * 32; first += threads) {
        const int at = first + thread_;
        if (value_dim / 8 * delta_blocks * 32 % threads == 0 || at < value_dim / 8 * delta_blocks * 32)
          ptx::copy_to_shared(shared_.updates + 4 * at, updates + 4 * at);
      }
    }
    if (thread_ < p_) shared_.sums[thread_] = kept_sum(thread_);
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
      out.load({.x = shared_.out, .gates = shared_.out_gates, .norm = shared_.norm}, rows_.row_begin,
               head_.index(args_), lane_);
      out.put(args_);
    }
    if (p_ == delta_chunk - 1 && warp_ < tiles) bring_forward();
    keep();
  }

 private:
  static constexpr int gate_warp = row_parts;  // finds the gates

  // Columns 16 * warp + lane / 4, and those 8 behind: whether there are such.
  __device__ __forceinline__ int column(int second) const { return warp_ * 16 + lane_ / 4 + 8 * second; }
  __device__ __forceinline__ bool has(int second) const {
    if constexpr (value_dim == warps * 16) return true;
    return column(second) < value_dim;
  }
  // Where the warp's columns begin among those of states and updates, for this lane.
  template <int of_steps>
  __device__ __forceinline__ int kept_first() const {
    return kept_place(of_steps, 2 * warp_, 0, lane_);
  }

  __device__ float* state_of(float* of_first, std::int64_t bytes, int slot) const {
    return in_slot(of_first, bytes, slot) + head_.index(args_) * (key_dim * value_dim);
  }
  __device__ float* kept_keys() const {
    return in_slot(args_.slots.keys, args_.slot_bytes, rows_.slot) + head_.key_head * key_dim;
  }
  __device__ float* kept_updates() const {
    return in_slot(args_.slots.updates, args_.slot_bytes, rows_.slot) +
           head_.index(args_) * (delta_chunk * value_dim);
  }
  __device__ double& kept_sum(int j) const {
    return in_slot(args_.slots.decays, args_.slot_bytes,
                   rows_.slot)[j * args_.value_heads + head_.index(args_)];
  }

  __device__ __forceinline__ InputChannels channels_of(int part) const {
    return part == row_query ? query_channels<key_dim>(args_, head_.key_head)
           : part == row_key ? key_channels<key_dim>(args_, head_.key_head)
                             : value_channels<key_dim, value_dim>(args_, head_);
  }

  // By a warp.
  template <int dims>
  __device__ __forceinline__ void copy_floats(float* to, const float* from) const {
    copy_lane(to, from, lane_ * lane_channels<dims> < dims);
  }
  static constexpr int count = lane_channels<value_dim>;
  static_assert(count == lane_channels<key_dim>);
  __device__ __forceinline__ void copy_lane(float* to, const float* from, bool is_there) const {
    if (!is_there) return;
    if constexpr (count == 4)
      ptx::copy_to_shared(to + 4 * lane_, from + 4 * lane_);
    else
      to[lane_] = from[lane_];
  }
  // The warp's part but for the row's own input.
  __device__ __forceinline__ void copy_filter() const {
    const InputChannels channels = channels_of(warp_);
    const bool is_there = lane_ * count < channels.dims;
    auto& to = shared_.filters[warp_];
    const auto copy = [&](float* row, const float* from) {
      if (from != nullptr) return copy_lane(row, from, is_there);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (is_there) row[lane_ * count + i] = 0;
      }
    };
#pragma unroll
    for (int tap = 0; tap < delta_cuda_taps; ++tap)
      copy(to.weights[tap], tap_weights(args_, tap, channels.channel));
#pragma unroll
    for (int back = 1; back < delta_cuda_taps; ++back) {
      const bool is_kept = back < args_.taps && rows_.first_position >= back;
      copy(to.inputs[delta_cuda_taps - 1 - back],
           is_kept ? kept_input(args_, rows_.slot, rows_.first_position - back, channels.channel) : nullptr);
    }
  }

  // The row's query and key, values, decay and beta.
  __device__ void take_row() {
    if (warp_ < row_parts) {
      const InputChannels channels = channels_of(warp_);
      copy_lane(shared_.filters[warp_].inputs[delta_cuda_taps - 1],
                args_.projected + std::ptrdiff_t{rows_.row_begin} * args_.projected_stride + channels.column,
                lane_ * count < channels.dims);
      ptx::await_copies_to_shared();
      __syncwarp();  // the warp has copied what it reads
      convolve(lane_ * count < channels.dims);
      return;
    }
    if (warp_ == gate_warp) {
      copy_floats<value_dim>(shared_.out_gates, HeadOut<value_dim>::gates_of(args_, rows_.row_begin, head_));
      if (lane_ == 0) {
        const HeadGates gates = gates_of(args_, rows_.row_begin, head_);
        shared_.sums[p_] = shared_.sum_before + gates.decay;
        shared_.beta = gates.beta;
      }
    }
    ptx::await_copies_to_shared();
  }
  __device__ __forceinline__ void convolve(bool is_there) const {
    using Channels = LaneChannels<count>;
    const auto& filter = shared_.filters[warp_];
    Channels channels;
    channels.begin();
#pragma unroll 1
    for (int tap = 0; tap < delta_cuda_taps; ++tap) {  // there are no registers for all at once
      typename Channels::Lane weights, input;
      Channels::fetch(weights, is_there ? filter.weights[tap] : nullptr, lane_);
      Channels::fetch(input, is_there ? filter.inputs[tap] : nullptr, lane_);
      channels.take_tap(weights, input);
    }
    channels.activate();
    if (warp_ == row_values) {
      if (is_there) channels.store(shared_.values, lane_);
      return;
    }
    channels.normalise(warp_ == row_query ? query_length<key_dim>() : 1.0f);
    uint4* const to = warp_ == row_query ? shared_.query : shared_.keys + p_ * Keys::units;
    if (is_there) channels.template store_terms<Keys::units>(to, p_, lane_);
  }

  // S^T k and S^T q of this warp's columns; and k_j . k and k_j . q of some eights of rows. Of products'
  // columns the first is the row's key and the others its query, of which the first counts; of their rows
  // likewise.
  __device__ __forceinline__ void read(float (&sums)[1][4]) {
    static_assert(delta_chunk / 8 <= 2 * warps);
    constexpr bool have_two = delta_chunk / 8 > warps;
    const int first = warp_, second = warp_ + warps;  // eights
    const bool has_first = first / 2 <= p_ / delta_block,
               has_second = have_two && second / 2 <= p_ / delta_block;
    const uint4* const of_lane = lane_ % 8 == 0 ? shared_.keys + p_ * Keys::units : shared_.query;
    float products[2][1][4] = {};
    PartedSums<1> parts;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const ColumnTerms columns[1] = {Keys::columns_of(of_lane, p_, step, lane_)};
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
  // Updates of a block's rows, of this lane's columns; own: of those up to p.
  template <bool own>
  __device__ __forceinline__ RowTerms update_rows(int block) const {
    const float* const of_block = shared_.updates + kept_first<delta_blocks>() + kept_place(1, block, 0, 0);
    float4 of_column[2];
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      float4& four = of_column[second];
      four = make_float4(0, 0, 0, 0);
      if (!has(second)) continue;
      four = *reinterpret_cast<const float4*>(of_block + kept_place(delta_blocks, second, 0, 0));
      if constexpr (own) {
        const int past = p_ + 1 - (delta_block * block + lane_ % 4 * 2);
        if (past < 1) four.x = 0;
        if (past < 2) four.y = 0;
        if (past < 9) four.z = 0;
        if (past < 10) four.w = 0;
      }
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
      const float value = has_sums && has(second) ? shared_.values[column(second)] : 0;
      of_update = fmaf(-decay, of_update, value);
      of_out = __fmul_rn(decay, of_out);
    }
    const int block = p_ / delta_block;
#pragma unroll 1
    for (int before = 0; before < block; ++before) {
      const ColumnTerms columns[1] = {product_columns(before, true)};
      multiply_terms(sums, update_rows<false>(before), columns);
    }
    // Lane 4g + 1 goes on with column g + 8.
    const float of_second = __shfl_sync(0xffffffffu, sums[0][2], lane_ / 4 * 4);
    const int second = lane_ % 4, of_lane = column(second);
    if (second < 2 && of_lane < value_dim) {
      float sum = second == 0 ? sums[0][0] : of_second;
      const auto factor = [&](int j) {
        return reinterpret_cast<const float*>(shared_.products + ProductRow::own_unit(j / 4))[j % 4];
      };
#pragma unroll 4
      for (int j = 0; j < p_ % delta_block; ++j)
        sum = fmaf(factor(j), shared_.updates[kept_update_place(of_lane, delta_block * block + j)], sum);
      const float update = __fmul_rn(shared_.beta, sum);
      shared_.updates[kept_update_place(of_lane, p_)] = update;
      if (p_ < delta_chunk - 1) kept_updates()[kept_update_place(of_lane, p_)] = update;
    }
    __syncwarp();  // the row's updates are there
    const ColumnTerms columns[1] = {product_columns(block, false)};
    multiply_terms(sums, update_rows<true>(block), columns);
    if (!has_sums) return;
    if (has(0)) shared_.out[column(0)] = sums[0][1];
    if (has(1)) shared_.out[column(1)] = sums[0][3];
  }

  // S to the border behind the chunk, as delta_chunks does. What is left of updates takes their place as
  // terms, of a lane's four rows of a column high and low: there are no registers for all beside the state.
  __device__ void bring_forward() {
    const double last = shared_.sums[delta_chunk - 1];
    float* const updates = shared_.updates + kept_first<delta_blocks>();
    const auto place = [&](int second, int block) {
      return updates + kept_place(delta_blocks, second, block, 0);
    };
#pragma unroll 1
    for (int block = 0; block < delta_blocks; ++block) {
      const double* const sums = shared_.sums + delta_block * block + lane_ % 4 * 2;
      const float left[4] = {decay_of(last - sums[0]), decay_of(last - sums[1]), decay_of(last - sums[8]),
                             decay_of(last - sums[9])};
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (!has(second)) continue;
        const float4 four = *reinterpret_cast<const float4*>(place(second, block));
        const TermPair first = terms_of(__fmul_rn(left[0], four.x), __fmul_rn(left[1], four.y)),
                       other = terms_of(__fmul_rn(left[2], four.z), __fmul_rn(left[3], four.w));
        *reinterpret_cast<uint4*>(place(second, block)) =
            make_uint4(first.high, other.high, first.low, other.low);
      }
    }
    const float decay = decay_of(last);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      float sums[2][4] = {};
#pragma unroll 1
      for (int block = 0; block < delta_blocks; ++block) {
        uint4 of_column[2] = {};
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          if (has(second)) of_column[second] = *reinterpret_cast<const uint4*>(place(second, block));
        }
        const RowTerms rows{make_uint4(of_column[0].x, of_column[1].x, of_column[0].y, of_column[1].y),
                            make_uint4(of_column[0].z, of_column[1].z, of_column[0].w, of_column[1].w)};
        const ColumnTerms columns[2] = {Keys::turned_columns(shared_.keys, 2 * step, block, lane_),
                                        Keys::turned_columns(shared_.keys, 2 * step + 1, block, lane_)};
        multiply_terms(sums, rows, columns);
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
          *reinterpret_cast<float4*>(to + kept_first<steps>() + kept_place(steps, second, step, 0)) =
              state_[step][second];
      }
    }
  }

  // What the next step goes on from, beside states and updates. A head of keys serves several blocks: one
  // keeps it.
  __device__ void keep() {
    const bool keeps_keys = head_.within == 0;
    if (p_ < delta_chunk - 1) {
      if (thread_ == 0) kept_sum(p_) = shared_.sums[p_];
      if (keeps_keys && thread_ < Keys::units)
        reinterpret_cast<uint4*>(kept_keys() + p_ * args_.keys(key_dim))[thread_] =
            shared_.keys[p_ * Keys::units + thread_];
    }
    for (int part = keeps_keys ? row_query : row_values; part < row_parts; ++part) {
      const InputChannels channels = channels_of(part);
      if (rows_.borders > 0) {
        keep_inputs(args_, rows_, channels, thread_, threads);
      } else if (thread_ < channels.dims) {
        kept_input(args_, rows_.slot, rows_.first_position, channels.channel)[thread_] =
            shared_.filters[part].inputs[delta_cuda_taps - 1][thread_];
      }
    }
    static_assert(threads >= key_dim && threads >= value_dim);
  }

  const DeltaKernelArgs& args_;
  Shared& shared_;
  const StateRowsCuda rows_;
  const ValueHead head_;
  const int p_, thread_, lane_, warp_;
  float4 state_[steps][2];
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(DeltaRow<key_dim, value_dim>::threads, 2)
    delta_rows(const __grid_constant__ DeltaKernelArgs args) {
  auto& shared = *reinterpret_cast<RowsShared<key_dim, value_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  DeltaRow<key_dim, value_dim> row(args, shared, rows, ValueHead::at(args, static_cast<int>(blockIdx.x)));
  if (rows.row_count == 1) row.begin();
  ptx::grid_dependency_wait();
  if (rows.row_count == 1) row.run();
}

}  // namespace

void launch_delta_rows(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = sizeof(RowsShared<key_dim, value_dim>);
    const auto kernel = delta_rows<key_dim, value_dim>;
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.step.sequences)),
         .threads = DeltaRow<key_dim, value_dim>::threads,
         .shared_bytes = bytes,
         .stream = stream,
         .overlaps = true,
         .share = share_of(args.step.rows)},
        kernel, args);
  });
}

}  // namespace nibble
