// Of sequences of several rows: products of a chunk's keys with its keys and queries, a block a chunk and
// head of keys; the sums of g over the chunk for the heads of values that it serves; and what each of these
// heads leaves of a product.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// A warp for each sixteen rows and sixteen rows up to those; and one for the sums.
constexpr int product_warps = delta_blocks * (delta_blocks + 1) / 2, multiply_threads = product_warps * 32,
              product_threads = multiply_threads + 32;
constexpr int rows_there = 1;  // the barrier of those who multiply

template <int key_dim>
struct alignas(128) ProductsShared {
  using Keys = KeyRows<key_dim>;
  union {
    struct {
      uint4 keys[delta_chunk * Keys::units], queries[delta_chunk * Keys::units];
    };
    uint4 out[2][delta_chunk * ProductRow::units];  // of two heads of values, behind the last product
  };
  double sums[1][delta_chunk];  // of as many heads as a head of keys serves
};

template <int key_dim>
class DeltaProducts {
  using Keys = KeyRows<key_dim>;
  using Shared = ProductsShared<key_dim>;

 public:
  __device__ DeltaProducts(const DeltaKernelArgs& args, Shared& shared, const ChunkRows& chunk, int key_head)
      : args_(args),
        shared_(shared),
        chunk_(chunk),
        key_head_(key_head),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(ptx::warp_of_block()),
        row_block_(warp_ < 1   ? 0
                   : warp_ < 3 ? 1
                   : warp_ < 6 ? 2
                               : 3),
        column_block_(warp_ - row_block_ * (row_block_ + 1) / 2) {}

  __device__ void run() {
    if (warp_ == product_warps) {
      add_gates();
    } else {
      copy_rows();
      ptx::await_copies_to_shared();
      ptx::named_barrier(rows_there, multiply_threads);
      multiply();
    }
    __syncthreads();  // sums are there, and rows have been read
#pragma unroll 1
    for (int within = 0; within < args_.served; within += 2) {
      const int heads = min(args_.served - within, 2);
      for (int i = 0; i < heads && warp_ < product_warps; ++i)
        leave(shared_.sums[within + i], shared_.out[i]);
      ptx::fence_shared_writes();
      __syncthreads();  // two heads' products are there
      for (int i = 0; i < heads; ++i) store(key_head_ * args_.served + within + i, shared_.out[i]);
      ptx::await_bulk_reads();
      if (within + 2 < args_.served) __syncthreads();  // they have been read
    }
  }

 private:
  __device__ void copy_rows() const {
    const float* const kept =
        in_slot(args_.slots.keys, args_.slot_bytes, chunk_.rows.slot) + key_head_ * key_dim;
    for (int at = thread_; at < chunk_.past * Keys::units; at += multiply_threads) {
      const int j = at / Keys::units, unit = at % Keys::units;
      if (j < chunk_.open) {
        ptx::copy_to_shared(shared_.keys + at, kept + j * args_.keys(key_dim) + 4 * unit);
        continue;
      }
      const float* const row = args_.qkv + chunk_.row_of(j) * static_cast<std::size_t>(args_.channels) +
                               key_head_ * key_dim + 4 * unit;
      ptx::copy_to_shared(shared_.queries + at, row);
      ptx::copy_to_shared(shared_.keys + at, row + args_.keys(key_dim));
    }
  }

  // Sums of g take the places of its rows. By a warp.
  __device__ void add_gates() const {
    const int served = args_.served, first = key_head_ * served;
    const double* const kept = in_slot(args_.slots.decays, args_.slot_bytes, chunk_.rows.slot) + first;
    const auto place = [&](int j) {
      return args_.decays + chunk_.row_of(j) * static_cast<std::size_t>(args_.value_heads) +
             static_cast<std::size_t>(first);
    };
    for (int at = lane_; at < chunk_.past * served; at += 32) {
      const int j = at / served, within = at % served;
      shared_.sums[within][j] = j < chunk_.open ? kept[j * args_.value_heads + within] : place(j)[within];
    }
    __syncwarp();
    for (int within = lane_; within < served; within += 32) {
      double(&sums)[delta_chunk] = shared_.sums[within];
      double sum = chunk_.open > 0 ? sums[chunk_.open - 1] : 0;
#pragma unroll 1
      for (int eight = 0; eight < delta_chunk; eight += 8) {
        double of_rows[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) of_rows[i] = sums[eight + i];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int j = eight + i;
          if (j < chunk_.open || j >= chunk_.past) continue;
          sum = j == 0 ? of_rows[i] : sum + of_rows[i];
          sums[j] = sum;
        }
      }
    }
    __syncwarp();
    for (int at = chunk_.open * served + lane_; at < chunk_.past * served; at += 32)
      place(at / served)[at % served] = shared_.sums[at % served][at / served];
  }

  // Rows p of keys, and of queries, by columns j of keys, as in delta_rows.
  __device__ void multiply() {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) with_key_[n][i] = with_query_[n][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < Keys::steps; ++step) {
      const ColumnTerms columns[2] = {Keys::columns(shared_.keys, 2 * column_block_, step, lane_),
                                      Keys::columns(shared_.keys, 2 * column_block_ + 1, step, lane_)};
      multiply_terms(with_key_, Keys::rows_of(shared_.keys, row_block_, step, lane_), columns);
      multiply_terms(with_query_, Keys::rows_of(shared_.queries, row_block_, step, lane_), columns);
    }
  }

  // What is left of the products by the rows p, of a head of values.
  __device__ void leave(const double (&sums)[delta_chunk], uint4* out) {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(out);
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int eight = 2 * column_block_ + n, j = 8 * eight + 2 * t;
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int p = delta_block * row_block_ + 8 * second + g;
        if (p >= chunk_.past) continue;
        float key[2], query[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float decay = j + i <= p ? decay_of(sums[p] - sums[j + i]) : 0;
          key[i] = j + i < p ? -__fmul_rn(decay, with_key_[n][2 * second + i]) : 0;
          query[i] = j + i <= p ? __fmul_rn(decay, with_query_[n][2 * second + i]) : 0;
        }
        const auto put = [&](int unit, const TermPair& terms) {
          pairs[ProductRow::place(p, unit) * 4 + t] = terms.high;
          pairs[ProductRow::place(p, unit + ProductRow::low) * 4 + t] = terms.low;
        };
        put(ProductRow::with_query + eight, terms_of(query[0], query[1]));
        if (column_block_ < row_block_)
          put(ProductRow::with_key + eight, terms_of(key[0], key[1]));
        else
          reinterpret_cast<float2*>(
              out)[ProductRow::place(p, ProductRow::own_unit(j % delta_block / 4)) * 2 + t % 2] =
              make_float2(key[0], key[1]);
      }
    }
  }

  // A thread a row; on its way when it returns.
  __device__ void store(int head, const uint4* out) const {
    const int j = chunk_.open + thread_;
    if (j >= chunk_.past) return;
    const std::size_t row =
        chunk_.row_of(j) * static_cast<std::size_t>(args_.value_heads) + static_cast<std::size_t>(head);
    ptx::bulk_copy_to_global(reinterpret_cast<uint4*>(args_.products) + row * ProductRow::units,
                             out + j * ProductRow::units, ProductRow::units * 16);
  }

  const DeltaKernelArgs& args_;
  Shared& shared_;
  const ChunkRows chunk_;
  const int key_head_, thread_, lane_, warp_;
  const int row_block_, column_block_;  // of this warp's products
  float with_key_[2][4], with_query_[2][4];
};

template <int key_dim>
__global__ void __launch_bounds__(product_threads, 3)
    delta_products(const __grid_constant__ DeltaKernelArgs args) {
  auto& shared = *reinterpret_cast<ProductsShared<key_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const ChunkRows chunk = chunk_at(args.step, static_cast<int>(blockIdx.x));
  ptx::grid_dependency_wait();
  if (chunk.past == 0) return;
  DeltaProducts<key_dim>(args, shared, chunk, static_cast<int>(blockIdx.y)).run();
}

}  // namespace

void launch_delta_products(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    const std::size_t bytes =
        sizeof(ProductsShared<key_dim>) +
        static_cast<std::size_t>(shape.value_heads / shape.key_heads - 1) * delta_chunk * sizeof(double);
    cuda_check(cudaFuncSetAttribute(delta_products<key_dim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)));
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(most_chunks(args.step)), static_cast<unsigned>(args.key_heads)),
         .threads = product_threads,
         .shared_bytes = bytes,
         .stream = stream,
         .overlaps = true},
        delta_products<key_dim>, args);
  });
}

}  // namespace nibble
