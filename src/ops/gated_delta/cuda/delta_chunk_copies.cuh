// What a block of delta_chunks has in shared memory, and how a chunk comes there.
#pragma once

#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"

namespace nibble {

inline constexpr int block_tiles = 2, tile_columns = 16, block_columns = block_tiles * tile_columns;
inline constexpr int compute_warps = delta_blocks * block_tiles, copy_threads = delta_chunk;
inline constexpr int chunk_threads = compute_warps * 32 + copy_threads;
inline constexpr int tile_threads = delta_blocks * 32;

template <int key_dim>
struct alignas(128) ChunkShared {
  using Keys = KeyRows<key_dim>;
  // By parity of the chunk.
  uint4 keys[2][delta_chunk * Keys::units], queries[2][delta_chunk * Keys::units];
  uint4 products[2][delta_chunk * ProductRow::units];
  float decays[2][delta_chunk], left[2][delta_chunk], betas[2][delta_chunk];
  // Of a tile of columns, as rows of products, high and low terms.
  uint4 state[block_tiles][Keys::steps][2][32];
  // Of a block's rows, as they are, and what is left of them behind the chunk.
  uint4 updates[block_tiles][delta_blocks][2][2][32];
  // Of chunks: keys and what goes with them, queries likewise. Of tiles: the state, whether all have read it,
  // updates of each block, whether all have read those of all blocks.
  std::uint64_t keys_come[2], keys_read[2], queries_come[2], queries_read[2];
  std::uint64_t state_there[block_tiles], state_read[block_tiles], updates_there[block_tiles][delta_blocks],
      updates_read[block_tiles];
};

// What all threads of a block know.
template <int key_dim, int value_dim>
struct ChunkWork {
  const DeltaKernelArgs& args;
  ChunkShared<key_dim>& shared;
  const StateRowsCuda rows;
  const int head, key_head, first_column;
  const int cluster, rank;

  __device__ float* state_of(float* of_first, std::int64_t bytes, int slot) const {
    return in_slot(of_first, bytes, slot) + head * (key_dim * value_dim);
  }
  __device__ float* kept_updates() const {
    return in_slot(args.slots.updates, args.slot_bytes, rows.slot) + head * (delta_chunk * value_dim);
  }
  __device__ const float* qkv(const ChunkRows& chunk, int j) const {
    return args.qkv + chunk.row_of(j) * static_cast<std::size_t>(args.channels);
  }
  // Of row j and this head.
  __device__ std::size_t of_head(const ChunkRows& chunk, int j) const {
    return chunk.row_of(j) * static_cast<std::size_t>(args.value_heads) + static_cast<std::size_t>(head);
  }
};

// By the copying warps, a thread a row of the chunk. Blocks of a cluster have columns of one head: each
// copies some of the rows into all of them.
template <int key_dim, int value_dim>
class ChunkCopies {
  using Keys = KeyRows<key_dim>;
  static constexpr std::uint32_t half_row = ProductRow::units * 16 / 2;  // with queries, then with keys

 public:
  __device__ ChunkCopies(const ChunkWork<key_dim, value_dim>& work, int thread)
      : work_(work), args_(work.args), shared_(work.shared), j_(thread) {}

  __device__ void run() {
    const int first = first_chunk_of(work_.rows), past = past_chunk_of(work_.rows);
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const ChunkRows chunk = chunk_of(work_.rows, index);
      const int turn = index - first, half = turn % 2;
      const std::uint32_t parity = static_cast<std::uint32_t>(turn / 2 - 1) & 1;
      const bool has_row = j_ < chunk.past && j_ % work_.cluster == work_.rank;
      const std::uint32_t rows = static_cast<std::uint32_t>(chunk.past),
                          new_rows = static_cast<std::uint32_t>(chunk.past - chunk.open);
      find_gates(chunk);
      if (turn >= 2) ptx::await_room(&shared_.keys_read[half], parity, args_.stuck, Stuck::delta_room);
      put_gates(half);
      if (j_ == 0)
        ptx::mbarrier_arrive_expecting(&shared_.keys_come[half], rows * Keys::bytes + new_rows * half_row);
      else
        ptx::mbarrier_arrive(&shared_.keys_come[half]);
      if (has_row) copy_keys(chunk, half);
      if (turn >= 2) ptx::await_room(&shared_.queries_read[half], parity, args_.stuck, Stuck::delta_room);
      if (j_ == 0)
        ptx::mbarrier_arrive_expecting(&shared_.queries_come[half], new_rows * (Keys::bytes + half_row));
      if (has_row && j_ >= chunk.open) copy_queries(chunk, half);
    }
  }

 private:
  __device__ void copy(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) const {
    if (work_.cluster == 1)
      ptx::bulk_copy_to_shared(to, from, bytes, barrier);
    else
      ptx::bulk_copy_to_blocks(to, from, bytes, barrier, (1u << work_.cluster) - 1);
  }
  __device__ const uint4* products(const ChunkRows& chunk) const {
    return reinterpret_cast<const uint4*>(args_.products) + work_.of_head(chunk, j_) * ProductRow::units;
  }
  __device__ void copy_keys(const ChunkRows& chunk, int half) const {
    const float* const kept = in_slot(args_.slots.keys, args_.slot_bytes, work_.rows.slot);
    const float* const row =
        j_ < chunk.open ? kept + j_ * args_.keys(key_dim) : work_.qkv(chunk, j_) + args_.keys(key_dim);
    std::uint64_t* const come = &shared_.keys_come[half];
    copy(shared_.keys[half] + j_ * Keys::units, row + work_.key_head * key_dim, Keys::bytes, come);
    if (j_ >= chunk.open)
      copy(shared_.products[half] + j_ * ProductRow::units + ProductRow::with_key,
           products(chunk) + ProductRow::with_key, half_row, come);
  }
  __device__ void copy_queries(const ChunkRows& chunk, int half) const {
    std::uint64_t* const come = &shared_.queries_come[half];
    copy(shared_.queries[half] + j_ * Keys::units, work_.qkv(chunk, j_) + work_.key_head * key_dim,
         Keys::bytes, come);
    copy(shared_.products[half] + j_ * ProductRow::units, products(chunk), half_row, come);
  }

  // What is left of the state by the row, of the row behind the chunk, and what the row takes in.
  __device__ void find_gates(const ChunkRows& chunk) {
    decay_ = left_ = beta_ = 0;
    if (j_ >= chunk.past) return;
    const double* const kept = in_slot(args_.slots.decays, args_.slot_bytes, work_.rows.slot) + work_.head;
    const double sum =
        j_ < chunk.open ? kept[j_ * args_.value_heads] : args_.decays[work_.of_head(chunk, j_)];
    decay_ = decay_of(sum);
    if (j_ >= chunk.open) beta_ = args_.betas[work_.of_head(chunk, j_)];
    if (chunk.past == delta_chunk)
      left_ = decay_of(args_.decays[work_.of_head(chunk, delta_chunk - 1)] - sum);
  }
  __device__ void put_gates(int half) const {
    shared_.decays[half][j_] = decay_;
    shared_.left[half][j_] = left_;
    shared_.betas[half][j_] = beta_;
  }

  const ChunkWork<key_dim, value_dim>& work_;
  const DeltaKernelArgs& args_;
  ChunkShared<key_dim>& shared_;
  const int j_;
  float decay_ = 0, left_ = 0, beta_ = 0;
};

}  // namespace nibble
