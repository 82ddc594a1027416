// The gated delta rule for sequences of many rows, with the bits of delta_rows. A block has some columns of
// one head's values, which are sums of their own, and goes from chunk to chunk.
//
// FLOPs of a row and head of 128 x 128: 65,000 multiply-adds, three quarters of them with the state. A
// chunk's keys, queries and products come while the chunk before it is computed.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int chunk_threads = 256, chunk_warps = chunk_threads / 32;
constexpr int warp_rows = delta_chunk / chunk_warps;

template <int key_dim, int value_dim>
struct alignas(16) ChunkShared {
  static constexpr int columns = value_dim < 32 ? value_dim : 32;  // of a block
  static constexpr int stride = key_dim + 4;  // rows that are read together meet other banks
  float keys[2][delta_chunk * stride], queries[2][delta_chunk * stride];
  float products[2][delta_chunk][2][delta_chunk];  // of row p: with keys, with queries
  float state[key_dim][columns];
  float updates[delta_chunk][columns];
  double sums[delta_chunk];
  float betas[delta_chunk], left[delta_chunk];
};

template <int key_dim, int value_dim>
class DeltaChunks {
 public:
  using Shared = ChunkShared<key_dim, value_dim>;
  static constexpr int columns = Shared::columns, stride = Shared::stride;

  __device__ DeltaChunks(const DeltaKernelArgs& args, Shared& shared, const StateRowsCuda& rows, int head,
                         int slice)
      : args_(args),
        shared_(shared),
        rows_(rows),
        head_(head),
        key_head_(head / args.served()),
        first_column_(slice * columns),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {}

  __device__ void run() {
    const int first = first_chunk_of(rows_), past = past_chunk_of(rows_);
    fetch(chunk_of(rows_, first), 0);
    for (int at = thread_; at < key_dim * columns; at += chunk_threads)
      (&shared_.state[0][0])[at] =
          first > 0 ? state_of(args_.slots.state, args_.slot_bytes, rows_.slot)[place_of(at)] : 0;
    int border = 0;
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const ChunkRows chunk = chunk_of(rows_, index);
      const int half = (index - first) % 2;
      ptx::await_copies_to_shared();
      __syncthreads();  // the chunk is there, and the one before it has been read
      if (index + 1 < past) fetch(chunk_of(rows_, index + 1), 1 - half);
      begin(chunk);
      __syncthreads();  // sums, betas and earlier updates are there
      weigh_products(chunk, half);
      read_state(chunk, half);
      __syncthreads();  // what the state gives is there, and the products' weights
      solve(chunk, half);
      if (chunk.past < delta_chunk) break;
      bring_forward(half);
      if (border == rows_.borders) continue;
      const BorderState kept = args_.step.borders[rows_.borders_at + border];
      if (kept.position != chunk.first_position + delta_chunk) continue;
      store_state(state_of(args_.snapshots.state, args_.snapshot_bytes, kept.slot));
      ++border;
    }
    end();
  }

 private:
  __device__ float* state_of(float* of_first, std::int64_t bytes, int slot) const {
    return in_slot(of_first, bytes, slot) + head_ * (key_dim * value_dim);
  }
  // Of element `at` of this block's state, in the head's.
  __device__ int place_of(int at) const { return at / columns * value_dim + first_column_ + at % columns; }
  __device__ float* kept_update(int j) const {
    return in_slot(args_.slots.updates, args_.slot_bytes, rows_.slot) +
           (head_ * delta_chunk + j) * value_dim + first_column_;
  }
  __device__ const float* kept_key(int j) const {
    return in_slot(args_.slots.keys, args_.slot_bytes, rows_.slot) + j * args_.keys(key_dim) +
           key_head_ * key_dim;
  }
  __device__ double kept_sum(int j) const {
    return in_slot(args_.slots.decays, args_.slot_bytes, rows_.slot)[j * args_.value_heads + head_];
  }
  __device__ std::size_t gate_of(const ChunkRows& chunk, int j) const {
    return chunk.row_of(j) * static_cast<std::size_t>(args_.value_heads) + static_cast<std::size_t>(head_);
  }

  // Asks for a chunk's keys, queries and products.
  __device__ void fetch(const ChunkRows& chunk, int half) {
    constexpr int fours = key_dim / 4;
    for (int at = thread_; at < chunk.past * fours; at += chunk_threads) {
      const int j = at / fours, dimension = at % fours * 4;
      float* const key = shared_.keys[half] + j * stride + dimension;
      if (j < chunk.open) {
        ptx::copy_to_shared(key, kept_key(j) + dimension);
        continue;
      }
      const float* const row = args_.qkv + chunk.row_of(j) * static_cast<std::size_t>(args_.channels) +
                               key_head_ * key_dim + dimension;
      ptx::copy_to_shared(shared_.queries[half] + j * stride + dimension, row);
      ptx::copy_to_shared(key, row + args_.keys(key_dim));
    }
    constexpr int of_row = 2 * delta_chunk / 4;
    for (int at = chunk.open * of_row + thread_; at < chunk.past * of_row; at += chunk_threads) {
      const int p = at / of_row, place = at % of_row * 4;
      ptx::copy_to_shared(&shared_.products[half][p][0][0] + place,
                          args_.products +
                              (chunk.row_of(p) * static_cast<std::size_t>(args_.key_heads) +
                               static_cast<std::size_t>(key_head_)) *
                                  (2 * delta_chunk) +
                              place);
    }
  }

  __device__ void begin(const ChunkRows& chunk) {
    for (int j = thread_; j < chunk.past; j += chunk_threads) {
      shared_.sums[j] = j < chunk.open ? kept_sum(j) : args_.decays[gate_of(chunk, j)];
      if (j >= chunk.open) shared_.betas[j] = args_.betas[gate_of(chunk, j)];
    }
    for (int at = thread_; at < chunk.open * columns; at += chunk_threads)
      shared_.updates[at / columns][at % columns] = kept_update(at / columns)[at % columns];
  }

  // What is left by row p of the products with row j.
  __device__ void weigh_products(const ChunkRows& chunk, int half) {
    for (int at = chunk.open * delta_chunk + thread_; at < chunk.past * delta_chunk; at += chunk_threads) {
      const int p = at / delta_chunk, j = at % delta_chunk;
      if (j >= p) continue;
      const float decay = decay_of(shared_.sums[p] - shared_.sums[j]);
      float(&of_row)[2][delta_chunk] = shared_.products[half][p];
      of_row[0][j] = __fmul_rn(decay, of_row[0][j]);
      of_row[1][j] = __fmul_rn(decay, of_row[1][j]);
    }
  }

  // v - e^G S^T k into updates; e^G S^T q into the rows' outputs. A thread has four columns of four rows, of
  // keys or of queries.
  __device__ void read_state(const ChunkRows& chunk, int half) {
    constexpr int quads = columns / 4, groups = delta_chunk / 4;
    if (thread_ >= 2 * quads * groups) return;
    const bool of_updates = thread_ < quads * groups;
    const int quad = thread_ % quads * 4, group = thread_ / quads % groups;
    const float* const rows = of_updates ? shared_.keys[half] : shared_.queries[half];
    float4 sums[4];
#pragma unroll 1
    for (int part = 0; part < delta_parts; ++part) {
      float4 own[4] = {};
#pragma unroll
      for (int four = 0; four < (key_dim / 4 + delta_parts - 1) / delta_parts; ++four) {
        const int dimension = (part + four * delta_parts) * 4;
        if (key_dim % (4 * delta_parts) != 0 && dimension >= key_dim) continue;
        float4 kept[4];
#pragma unroll
        for (int d = 0; d < 4; ++d)
          kept[d] = *reinterpret_cast<const float4*>(&shared_.state[dimension + d][quad]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 x = *reinterpret_cast<const float4*>(rows + (group + i * groups) * stride + dimension);
          own[i] = add_times(own[i], x.x, kept[0]);
          own[i] = add_times(own[i], x.y, kept[1]);
          own[i] = add_times(own[i], x.z, kept[2]);
          own[i] = add_times(own[i], x.w, kept[3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = part == 0 ? own[i]
                            : make_float4(__fadd_rn(sums[i].x, own[i].x), __fadd_rn(sums[i].y, own[i].y),
                                          __fadd_rn(sums[i].z, own[i].z), __fadd_rn(sums[i].w, own[i].w));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = group + i * groups;
      if (p < chunk.open || p >= chunk.past) continue;
      const float decay = decay_of(shared_.sums[p]);
      if (of_updates) {
        const float4 value = *reinterpret_cast<const float4*>(
            args_.qkv + chunk.row_of(p) * static_cast<std::size_t>(args_.channels) + 2 * args_.keys(key_dim) +
            head_ * value_dim + first_column_ + quad);
        *reinterpret_cast<float4*>(&shared_.updates[p][quad]) = add_times(value, -decay, sums[i]);
      } else {
        *reinterpret_cast<float4*>(out_of(chunk, p) + quad) =
            make_float4(__fmul_rn(decay, sums[i].x), __fmul_rn(decay, sums[i].y), __fmul_rn(decay, sums[i].z),
                        __fmul_rn(decay, sums[i].w));
      }
    }
  }
  __device__ __forceinline__ static float4 add_times(const float4& sum, float factor, const float4& by) {
    return make_float4(fmaf(factor, by.x, sum.x), fmaf(factor, by.y, sum.y), fmaf(factor, by.z, sum.z),
                       fmaf(factor, by.w, sum.w));
  }
  // What the head gives of a row, at this block's columns.
  __device__ float* out_of(const ChunkRows& chunk, int p) const {
    return args_.mixed +
           (chunk.row_of(p) * static_cast<std::size_t>(args_.value_heads) + static_cast<std::size_t>(head_)) *
               value_dim +
           first_column_;
  }

  // Updates and outputs of all rows. A warp has eight rows, a lane a column: the warp's own updates follow
  // from each other in registers, once those of the warps before it are there.
  __device__ void solve(const ChunkRows& chunk, int half) {
    const int first = warp_ * warp_rows, column = min(lane_, columns - 1);
    float update[warp_rows], out[warp_rows];
#pragma unroll
    for (int i = 0; i < warp_rows; ++i) {
      const int p = first + i;
      const bool is_new = p >= chunk.open && p < chunk.past;
      update[i] = is_new || p < chunk.open ? shared_.updates[p][column] : 0;
      out[i] = is_new ? out_of(chunk, p)[column] : 0;
    }
#pragma unroll 1
    for (int before = 0; before < chunk_warps; ++before) {
      if (before == warp_) {
#pragma unroll
        for (int i = 0; i < warp_rows; ++i) {
          const int p = first + i;
          const bool is_new = p >= chunk.open && p < chunk.past;
          const float(&with)[2][delta_chunk] = shared_.products[half][p];
#pragma unroll
          for (int j = 0; j < i; ++j) {
            if (is_new) update[i] = fmaf(-with[0][first + j], update[j], update[i]);
            if (is_new) out[i] = fmaf(with[1][first + j], update[j], out[i]);
          }
          if (!is_new) continue;
          update[i] = __fmul_rn(shared_.betas[p], update[i]);
          out[i] = fmaf(with[1][p], update[i], out[i]);
          if (lane_ < columns) shared_.updates[p][column] = update[i];
        }
      }
      __syncthreads();  // the updates of this warp's rows are there
      if (before >= warp_) continue;
#pragma unroll
      for (int j = before * warp_rows; j < (before + 1) * warp_rows; ++j) {
        const float earlier = shared_.updates[j][column];
#pragma unroll
        for (int i = 0; i < warp_rows; ++i) {
          const int p = first + i;
          if (p < chunk.open || p >= chunk.past) continue;
          update[i] = fmaf(-shared_.products[half][p][0][j], earlier, update[i]);
          out[i] = fmaf(shared_.products[half][p][1][j], earlier, out[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < warp_rows; ++i) {
      const int p = first + i;
      if (p >= chunk.open && p < chunk.past && lane_ < columns) out_of(chunk, p)[column] = out[i];
    }
  }

  // S to the border behind the chunk; a thread has four columns of four dimensions.
  __device__ void bring_forward(int half) {
    constexpr int last = delta_chunk - 1, quads = columns / 4;
    for (int j = thread_; j < delta_chunk; j += chunk_threads)
      shared_.left[j] = decay_of(shared_.sums[last] - shared_.sums[j]);
    __syncthreads();  // what is left of each row is known
    if (thread_ >= quads * (key_dim / 4)) return;
    const int quad = thread_ % quads * 4, dimension = thread_ / quads * 4;
    const float decay = decay_of(shared_.sums[last]);
    float4 sums[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const float4 kept = *reinterpret_cast<const float4*>(&shared_.state[dimension + d][quad]);
      sums[d] = make_float4(__fmul_rn(decay, kept.x), __fmul_rn(decay, kept.y), __fmul_rn(decay, kept.z),
                            __fmul_rn(decay, kept.w));
    }
#pragma unroll 4
    for (int j = 0; j < delta_chunk; ++j) {
      const float left = shared_.left[j];
      const float4 key = *reinterpret_cast<const float4*>(shared_.keys[half] + j * stride + dimension),
                   update = *reinterpret_cast<const float4*>(&shared_.updates[j][quad]);
      sums[0] = add_times(sums[0], __fmul_rn(left, key.x), update);
      sums[1] = add_times(sums[1], __fmul_rn(left, key.y), update);
      sums[2] = add_times(sums[2], __fmul_rn(left, key.z), update);
      sums[3] = add_times(sums[3], __fmul_rn(left, key.w), update);
    }
#pragma unroll
    for (int d = 0; d < 4; ++d) *reinterpret_cast<float4*>(&shared_.state[dimension + d][quad]) = sums[d];
  }

  __device__ void store_state(float* to) const {
    __syncthreads();  // all of it is there
    for (int at = thread_; at < key_dim * columns; at += chunk_threads)
      to[place_of(at)] = (&shared_.state[0][0])[at];
  }

  // What the next step goes on from; what other blocks read as well, delta_keep brings there.
  __device__ void end() {
    const int past = rows_.first_position + rows_.row_count, begin = past / delta_chunk * delta_chunk;
    if (begin > rows_.first_position) store_state(state_of(args_.slots.state, args_.slot_bytes, rows_.slot));
    __syncthreads();  // the last chunk's updates are there
    const int first = max(begin, rows_.first_position) - begin, open = past - begin;
    for (int at = first * columns + thread_; at < open * columns; at += chunk_threads)
      kept_update(at / columns)[at % columns] = shared_.updates[at / columns][at % columns];
  }

  const DeltaKernelArgs& args_;
  Shared& shared_;
  const StateRowsCuda rows_;
  const int head_, key_head_, first_column_, thread_, lane_, warp_;
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(chunk_threads) delta_chunks(const __grid_constant__ DeltaKernelArgs args) {
  using Shared = ChunkShared<key_dim, value_dim>;
  constexpr int slices = value_dim / Shared::columns;
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  ptx::grid_dependency_wait();
  if (!has_many_delta_rows(rows.row_count)) return;
  const int block = static_cast<int>(blockIdx.x);
  DeltaChunks<key_dim, value_dim>(args, shared, rows, block / slices, block % slices).run();
}

}  // namespace

void launch_delta_chunks(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    using Shared = ChunkShared<key_dim, value_dim>;
    cuda_check(cudaFuncSetAttribute(delta_chunks<key_dim, value_dim>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(sizeof(Shared))));
    launch_kernel({.blocks = dim3(static_cast<unsigned>(args.value_heads * (value_dim / Shared::columns)),
                                  static_cast<unsigned>(args.step.sequences)),
                   .threads = chunk_threads,
                   .shared_bytes = sizeof(Shared),
                   .stream = stream,
                   .overlaps = true},
                  delta_chunks<key_dim, value_dim>, args);
  });
}

}  // namespace nibble
