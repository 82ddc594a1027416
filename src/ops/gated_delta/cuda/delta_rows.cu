// The gated delta rule, a block a head of values of a sequence, row by row: for decode, and for any cut of a
// prompt.
//
// Bytes of a decode row and head of 128 x 128: the state's 64 KB, which threads hold in registers, and up to
// 63 rows of keys and updates of 1 KB together, which lie in shared memory. All of it is asked for before the
// kernel ahead has ended: only this step's rows are new. FLOPs are few but where a chunk ends, once in 64
// rows.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_keep.cuh"
#include "ops/gated_delta/cuda/delta_norm.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int parts = delta_parts;

template <int key_dim, int value_dim>
struct alignas(16) RowsShared {
  float keys[delta_chunk][key_dim];
  float updates[delta_chunk][value_dim];
  float query[key_dim];
  float known[parts][value_dim], read[parts][value_dim];
  float with_key[delta_chunk], with_query[delta_chunk], left[delta_chunk];
  float out[value_dim];
  double sums[delta_chunk];  // of g
};

template <int key_dim, int value_dim>
class DeltaRows {
 public:
  static constexpr int chains = 2 * value_dim;  // u's columns and o's
  static constexpr int threads = (chains + 31) / 32 * 32;
  using Shared = RowsShared<key_dim, value_dim>;

  __device__ DeltaRows(const DeltaKernelArgs& args, Shared& shared, const StateRowsCuda& rows, int head)
      : args_(args),
        shared_(shared),
        rows_(rows),
        head_(head),
        key_head_(head / args.served()),
        within_(head % args.served()),
        thread_(static_cast<int>(threadIdx.x)),
        part_(thread_ % parts),
        column_(thread_ / parts * 4) {}

  // What earlier steps have left; on its way when it returns.
  __device__ void begin() {
    const float* const state = state_of(args_.slots.state, args_.slot_bytes, rows_.slot);
    for_each_dimension([&](int i, int dimension) {
      state_[i] = rows_.first_position >= delta_chunk
                      ? *reinterpret_cast<const float4*>(state + dimension * value_dim + column_)
                      : make_float4(0, 0, 0, 0);
    });
    const int open = rows_.first_position % delta_chunk;
    copy_rows<key_dim>(&shared_.keys[0][0], kept_key(0), open, args_.keys(key_dim));
    copy_rows<value_dim>(&shared_.updates[0][0], kept_update(0), open, value_dim);
    for (int j = thread_; j < open; j += threads) shared_.sums[j] = kept_sum(j);
  }

  __device__ void run() {
    int border = 0;
    ptx::await_copies_to_shared();
    __syncthreads();  // what begin() asked for is there
#pragma unroll 1
    for (int i = 0; i < rows_.row_count; ++i) {
      const int position = rows_.first_position + i;
      take(rows_.row_begin + i, position % delta_chunk);
      if (position % delta_chunk != delta_chunk - 1) continue;
      bring_forward();
      if (border == rows_.borders) continue;
      const BorderState kept = args_.step.borders[rows_.borders_at + border];
      if (kept.position != position + 1) continue;
      store_state(state_of(args_.snapshots.state, args_.snapshot_bytes, kept.slot));
      ++border;
    }
    end();
  }

 private:
  // Dimensions of keys of this thread's part, those whose columns column_ .. column_ + 3 it holds.
  static constexpr int fours = (key_dim / 4 + parts - 1) / parts, held = 4 * fours;
  template <class Visit>
  __device__ __forceinline__ void for_each_dimension(const Visit& visit) const {
    if (column_ >= value_dim) return;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int dimension = (part_ + i / 4 * parts) * 4 + i % 4;
      if (key_dim % (4 * parts) == 0 || dimension < key_dim) visit(i, dimension);
    }
  }

  __device__ float* state_of(float* of_first, std::int64_t bytes, int slot) const {
    return in_slot(of_first, bytes, slot) + head_ * (key_dim * value_dim);
  }
  __device__ float* kept_key(int j) const {
    return in_slot(args_.slots.keys, args_.slot_bytes, rows_.slot) + j * args_.keys(key_dim) +
           key_head_ * key_dim;
  }
  __device__ float* kept_update(int j) const {
    return in_slot(args_.slots.updates, args_.slot_bytes, rows_.slot) + (head_ * delta_chunk + j) * value_dim;
  }
  __device__ double& kept_sum(int j) const {
    return in_slot(args_.slots.decays, args_.slot_bytes, rows_.slot)[j * args_.value_heads + head_];
  }

  // Rows of `dims` floats, `stride` apart.
  template <int dims>
  __device__ void copy_rows(float* to, const float* from, int count, int stride) const {
    constexpr int pieces = dims / 4;
    for (int at = thread_; at < count * pieces; at += threads)
      ptx::copy_to_shared(to + at * 4, from + at / pieces * stride + at % pieces * 4);
  }

  // Row p of the chunk: its u and o.
  __device__ void take(int row, int p) {
    const float* const inputs =
        args_.qkv + static_cast<std::size_t>(row) * static_cast<std::size_t>(args_.channels);
    const std::size_t gate = static_cast<std::size_t>(row) * static_cast<std::size_t>(args_.value_heads) +
                             static_cast<std::size_t>(head_);
    for (int at = thread_; at < 2 * key_dim; at += threads) {
      const bool of_query = at < key_dim;
      const int dimension = of_query ? at : at - key_dim;
      (of_query ? shared_.query : shared_.keys[p])[dimension] =
          inputs[(of_query ? 0 : args_.keys(key_dim)) + key_head_ * key_dim + dimension];
    }
    const double g = args_.decays[gate];
    if (thread_ == 0) shared_.sums[p] = p == 0 ? g : shared_.sums[p - 1] + g;
    __syncthreads();  // the row is there
    read_state(p);
    multiply_keys(p);
    __syncthreads();  // sums over the state and with keys are there
    const bool of_update = thread_ < value_dim;
    const int column = of_update ? thread_ : thread_ - value_dim;
    float sum = 0;
    if (thread_ < chains) {
      sum = from_state(of_update, column, p, inputs);
      const float* const with = of_update ? shared_.with_key : shared_.with_query;
#pragma unroll 8
      for (int j = 0; j < p; ++j) {
        const float factor = with[j];
        sum = fmaf(of_update ? -factor : factor, shared_.updates[j][column], sum);
      }
      if (of_update) shared_.updates[p][column] = __fmul_rn(args_.betas[gate], sum);
    }
    __syncthreads();  // u is there
    if (thread_ < chains && !of_update)
      shared_.out[column] = fmaf(shared_.with_query[p], shared_.updates[p][column], sum);
    __syncthreads();  // o is there
    put_out(row);
  }

  // Sums of this thread's part of dimensions.
  __device__ void read_state(int p) {
    float4 known = make_float4(0, 0, 0, 0), read = known;
    for_each_dimension([&](int i, int dimension) {
      const float k = shared_.keys[p][dimension], q = shared_.query[dimension];
      known = add_times(known, k, state_[i]);
      read = add_times(read, q, state_[i]);
    });
    if (column_ >= value_dim) return;
    *reinterpret_cast<float4*>(&shared_.known[part_][column_]) = known;
    *reinterpret_cast<float4*>(&shared_.read[part_][column_]) = read;
  }
  __device__ __forceinline__ static float4 add_times(const float4& sum, float factor, const float4& by) {
    return make_float4(fmaf(factor, by.x, sum.x), fmaf(factor, by.y, sum.y), fmaf(factor, by.z, sum.z),
                       fmaf(factor, by.w, sum.w));
  }

  // Of the chunk's keys up to this row's with its key and its query, what is left of each by now.
  __device__ void multiply_keys(int p) {
    for (int first = thread_ / 32 * (32 / parts); first <= p; first += threads / parts) {
      const int j = first + thread_ % 32 / parts, row = min(j, p);
      float with_key = 0, with_query = 0;
#pragma unroll
      for (int i = 0; i < held; ++i) {
        const int dimension = (part_ + i / 4 * parts) * 4 + i % 4;
        if (key_dim % (4 * parts) != 0 && dimension >= key_dim) continue;
        const float earlier = shared_.keys[row][dimension];
        with_key = fmaf(earlier, shared_.keys[p][dimension], with_key);
        with_query = fmaf(earlier, shared_.query[dimension], with_query);
      }
#pragma unroll
      for (int apart = parts / 2; apart > 0; apart /= 2) {
        with_key = __fadd_rn(with_key, __shfl_xor_sync(0xffffffffu, with_key, apart));
        with_query = __fadd_rn(with_query, __shfl_xor_sync(0xffffffffu, with_query, apart));
      }
      if (part_ != 0 || j > p) continue;
      const float decay = decay_of(shared_.sums[p] - shared_.sums[j]);
      shared_.with_key[j] = __fmul_rn(decay, with_key);
      shared_.with_query[j] = j == p ? with_query : __fmul_rn(decay, with_query);
    }
  }

  // v - e^G S^T k, or e^G S^T q.
  __device__ float from_state(bool of_update, int column, int p, const float* inputs) const {
    const float(&sums)[parts][value_dim] = of_update ? shared_.known : shared_.read;
    float sum = sums[0][column];
#pragma unroll
    for (int part = 1; part < parts; ++part) sum = __fadd_rn(sum, sums[part][column]);
    const float decay = decay_of(shared_.sums[p]);
    if (!of_update) return __fmul_rn(decay, sum);
    return fmaf(-decay, sum, inputs[2 * args_.keys(key_dim) + head_ * value_dim + column]);
  }

  // By the first warp.
  __device__ void put_out(int row) const {
    if (thread_ < 32) put_head_out<value_dim>(args_, row, head_, shared_.out, thread_);
  }

  // S to the border behind the chunk.
  __device__ void bring_forward() {
    constexpr int last = delta_chunk - 1;
    for (int j = thread_; j < delta_chunk; j += threads)
      shared_.left[j] = decay_of(shared_.sums[last] - shared_.sums[j]);
    __syncthreads();  // what is left of each row is known
    const float decay = decay_of(shared_.sums[last]);
    for_each_dimension([&](int i, int) {
      float4& kept = state_[i];
      kept = make_float4(__fmul_rn(decay, kept.x), __fmul_rn(decay, kept.y), __fmul_rn(decay, kept.z),
                         __fmul_rn(decay, kept.w));
    });
#pragma unroll 1
    for (int j = 0; j < delta_chunk; ++j) {
      const float left = shared_.left[j];
      if (column_ >= value_dim) break;
      const float4 update = *reinterpret_cast<const float4*>(&shared_.updates[j][column_]);
      for_each_dimension([&](int i, int dimension) {
        state_[i] = add_times(state_[i], __fmul_rn(left, shared_.keys[j][dimension]), update);
      });
    }
    __syncthreads();  // the chunk has been read: the next one's rows take its place
  }

  __device__ void store_state(float* to) const {
    for_each_dimension([&](int i, int dimension) {
      *reinterpret_cast<float4*>(to + dimension * value_dim + column_) = state_[i];
    });
  }

  // What the next step goes on from.
  __device__ void end() {
    const int past = rows_.first_position + rows_.row_count, begin = past / delta_chunk * delta_chunk;
    if (begin > rows_.first_position) store_state(state_of(args_.slots.state, args_.slot_bytes, rows_.slot));
    const int first = max(begin, rows_.first_position) - begin, open = past - begin;
    for (int at = first * value_dim + thread_; at < open * value_dim; at += threads)
      kept_update(0)[at] = (&shared_.updates[0][0])[at];
    for (int j = first + thread_; j < open; j += threads) kept_sum(j) = shared_.sums[j];
    if (rows_.row_count > 1) return;  // of more rows delta_keep does the rest, once no block reads it
    if (within_ == 0) {
      keep_keys<key_dim>(args_, rows_, key_head_, thread_, threads);
      keep_key_inputs<key_dim>(args_, rows_, key_head_, thread_, threads);
    }
    keep_value_inputs<key_dim, value_dim>(args_, rows_, head_, thread_, threads);
  }

  const DeltaKernelArgs& args_;
  Shared& shared_;
  const StateRowsCuda rows_;
  const int head_, key_head_, within_, thread_, part_, column_;
  float4 state_[held];
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(DeltaRows<key_dim, value_dim>::threads, 2)
    delta_rows(const __grid_constant__ DeltaKernelArgs args) {
  auto& shared = *reinterpret_cast<RowsShared<key_dim, value_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  DeltaRows<key_dim, value_dim> head(args, shared, rows, static_cast<int>(blockIdx.x));
  const bool has_rows = rows.row_count > 0 && !has_many_delta_rows(rows.row_count);
  if (has_rows) head.begin();
  ptx::grid_dependency_wait();
  if (has_rows) head.run();
}

}  // namespace

void launch_delta_rows(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = sizeof(RowsShared<key_dim, value_dim>);
    cuda_check(cudaFuncSetAttribute(delta_rows<key_dim, value_dim>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.step.sequences)),
         .threads = DeltaRows<key_dim, value_dim>::threads,
         .shared_bytes = bytes,
         .stream = stream,
         .overlaps = true,
         .share = share_of(args.step.rows)},
        delta_rows<key_dim, value_dim>, args);
  });
}

}  // namespace nibble
