// What a block of delta_chunks has in shared memory, and how a chunk comes there.
#pragma once

#include "ops/gated_delta/cuda/delta_block_updates.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup_swizzled.cuh"

namespace nibble {

// Warpgroups: one finds updates, one outputs, two have halves of the state, one copies.
enum ChunkPart { chunk_updates, chunk_outputs, chunk_state, chunk_copies = chunk_state + 2, chunk_parts };
inline constexpr int part_warps = 4, part_threads = part_warps * 32,
                     chunk_threads = chunk_parts * part_threads;
static_assert(part_warps == delta_blocks);

// Barriers of those who wait for little else (ptx::named_barrier): the state, of the warps that find updates;
// updates of a block, of the warp of the block behind; what is left of them, of those that hold the state.
enum ChunkBarrier { state_is_there = 1, update_is_there, left_is_there = update_is_there + delta_blocks };

// Where whole chunks' rows are copied from.
struct ChunkMaps {
  ptx::TensorMap qkv;       // [rows, channels], in blocks of 128 bytes
  ptx::TensorMap products;  // [rows, 2 * value_heads] halves (ProductHalf)
};

// A chunk's keys or queries in shared memory as tiles of warpgroups' products
// (ops/ptx/warpgroup_swizzled.cuh). A row of a tile is a row of the chunk: high terms of 64 dimensions a
// tile, then the low ones. Of fewer dimensions the rest of a tile's 64 columns is read by nobody.
template <int key_dim>
struct KeyTiles {
  using Rows = KeyRows<key_dim>;
  static constexpr int row_bytes = ptx::swizzled_row_bytes, tile_bytes = 64 * row_bytes,
                       parts = (key_dim + 63) / 64;
  static constexpr int low = parts * tile_bytes, bytes = 2 * low;

  // A row comes in pieces, each to a tile of its own where a tile's row is full of dimensions.
  static constexpr bool whole_tiles = key_dim % 64 == 0;
  static constexpr int pieces = whole_tiles ? 2 * parts : Rows::units, piece_bytes = Rows::bytes / pieces;
  __device__ __forceinline__ static int place(int row, int piece) {
    if constexpr (whole_tiles) return piece * tile_bytes + row * row_bytes;
    const int unit = unit_place<Rows::units>(row, piece), of_term = Rows::units / 2;
    return unit / of_term * low + row * row_bytes + (unit % of_term ^ row % 8) * 16;
  }

  // Where sixteen dimensions of all rows' high terms begin, as k of a product.
  __device__ __forceinline__ static unsigned step(int step) {
    return static_cast<unsigned>(step / 4 * tile_bytes + step % 4 * 32);
  }
};

template <int key_dim>
struct ChunkShared {
  using Tiles = KeyTiles<key_dim>;
  // By parity of the chunk.
  std::uint8_t keys[2][Tiles::bytes];
  std::uint8_t queries[Tiles::bytes];
  // A row of a tile is a dimension of keys, with high terms of 32 columns of values, then the low ones.
  std::uint8_t state[Tiles::parts * Tiles::tile_bytes];
  uint4 of_keys[2][delta_chunk * ProductHalf::units], of_queries[2][delta_chunk * ProductHalf::units];
  BlockUpdates updates[delta_blocks];
  float decays[2][delta_chunk], left[2][delta_chunk], betas[2][delta_chunk];
  // Of chunks: keys, queries, each with their products; whether all have read them.
  std::uint64_t keys_come[2], keys_read[2], queries_come, queries_read;
  // Of a chunk: whether its state has been read; the first blocks' solutions, which leave memory to others;
  // updates of each block, and whether all have been read.
  std::uint64_t state_read, solving[2], updates_there[delta_blocks], updates_read;
};

// What all threads of a block know.
template <int key_dim, int value_dim>
struct ChunkWork {
  const DeltaKernelArgs& args;
  const ChunkMaps& maps;
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

// By a warpgroup, of whose threads half find the gates of a row each. Blocks of a cluster have columns of one
// head: each copies a part of the rows into all of them.
template <int key_dim, int value_dim>
class ChunkCopies {
  using Keys = KeyRows<key_dim>;
  using Tiles = KeyTiles<key_dim>;
  static constexpr int half_row = ProductHalf::units * 16, box_rows = delta_chunk / 4;

 public:
  // Boxes of products have rows of so many for each of four blocks.
  __host__ static ChunkMaps maps(const DeltaKernelArgs& args) {
    if constexpr (!Tiles::whole_tiles) return {};
    const int rows = args.step.rows;
    return {.qkv = ptx::box_map({.matrix = args.qkv,
                                 .block_bytes = Tiles::piece_bytes,
                                 .blocks = args.channels * 4 / Tiles::piece_bytes,
                                 .rows = rows,
                                 .box_rows = delta_chunk}),
            .products = ptx::box_map({.matrix = args.products,
                                      .block_bytes = half_row,
                                      .blocks = 2 * args.value_heads,
                                      .rows = rows,
                                      .box_rows = box_rows})};
  }

  __device__ ChunkCopies(const ChunkWork<key_dim, value_dim>& work, int thread)
      : work_(work), args_(work.args), shared_(work.shared), thread_(thread) {}

  __device__ void run() {
    const int first = first_chunk_of(work_.rows), past = past_chunk_of(work_.rows);
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const ChunkRows chunk = chunk_of(work_.rows, index);
      const int turn = index - first, half = turn % 2;
      // Boxes have rows of other sequences behind this one's, which nobody uses.
      const bool in_boxes = Tiles::whole_tiles && chunk.open == 0;
      const int rows = in_boxes ? delta_chunk : chunk.past,
                new_rows = in_boxes ? delta_chunk : chunk.past - chunk.open;
      find_gates(chunk);
      // All threads arrive once they have seen that there is room. A barrier's next phase may have ended
      // before one that had not would look, and looked like the one it waits for.
      if (turn >= 2) await(&shared_.keys_read[half], turn / 2 - 1);
      put_gates(half);
      arrive(&shared_.keys_come[half], rows * Keys::bytes + new_rows * half_row);
      const To keys{shared_.keys[half], shared_.of_keys[half], &shared_.keys_come[half], false};
      copy(chunk, keys, in_boxes);
      if (turn >= 1) await(&shared_.queries_read, turn - 1);
      arrive(&shared_.queries_come, new_rows * (Keys::bytes + half_row));
      const To queries{shared_.queries, shared_.of_queries[half], &shared_.queries_come, true};
      copy(chunk, queries, in_boxes);
    }
  }

 private:
  struct To {
    std::uint8_t* tiles;
    uint4* products;
    std::uint64_t* come;
    bool of_queries;
  };

  __device__ void await(std::uint64_t* barrier, int phase) const {
    ptx::await_room(barrier, static_cast<std::uint32_t>(phase) & 1, args_.stuck, Stuck::delta_room);
  }
  // bytes: that are to come.
  __device__ void arrive(std::uint64_t* barrier, int bytes) const {
    if (thread_ == 0)
      ptx::mbarrier_arrive_expecting(barrier, static_cast<std::uint32_t>(bytes));
    else
      ptx::mbarrier_arrive(barrier);
  }
  // All blocks of the cluster.
  __device__ unsigned ranks() const { return (1u << work_.cluster) - 1; }
  __device__ int first_channel(const To& to) const {
    return (to.of_queries ? 0 : args_.keys(key_dim)) + work_.key_head * key_dim;
  }

  __device__ void copy(const ChunkRows& chunk, const To& to, bool in_boxes) const {
    if (!in_boxes)
      copy_rows(chunk, to);
    else if (thread_ == 0)
      copy_boxes(chunk, to);
  }
  __device__ void copy_boxes(const ChunkRows& chunk, const To& to) const {
    const int row = static_cast<int>(chunk.row_of(0));
    const auto copy_box = [&](void* shared, const ptx::TensorMap& map, int block, int first_row) {
      if (work_.cluster == 1)
        ptx::box_copy_to_shared(shared, map, block, first_row, to.come);
      else
        ptx::box_copy_to_blocks(shared, map, block, first_row, to.come, ranks());
    };
    for (int tile = work_.rank; tile < Tiles::pieces; tile += work_.cluster)
      copy_box(to.tiles + tile * Tiles::tile_bytes, work_.maps.qkv,
               first_channel(to) * 4 / Tiles::piece_bytes + tile, row);
    for (int begin = work_.rank * box_rows; begin < delta_chunk; begin += work_.cluster * box_rows)
      copy_box(to.products + begin * ProductHalf::units, work_.maps.products,
               2 * work_.head + (to.of_queries ? 0 : 1), row + begin);
  }
  // Row by row, piece after piece, with each row's first its products; known rows have neither queries nor
  // products.
  __device__ void copy_rows(const ChunkRows& chunk, const To& to) const {
    const float* const kept = in_slot(args_.slots.keys, args_.slot_bytes, work_.rows.slot);
    const auto copy_piece = [&](void* shared, const void* from, int bytes) {
      if (work_.cluster == 1)
        ptx::bulk_copy_to_shared(shared, from, static_cast<std::uint32_t>(bytes), to.come);
      else
        ptx::bulk_copy_to_blocks(shared, from, static_cast<std::uint32_t>(bytes), to.come, ranks());
    };
    for (int at = thread_; at < delta_chunk / work_.cluster * Tiles::pieces; at += part_threads) {
      const int j = at / Tiles::pieces * work_.cluster + work_.rank, piece = at % Tiles::pieces;
      const bool is_known = j < chunk.open;
      if (j >= chunk.past || (is_known && to.of_queries)) continue;
      const float* const row = is_known ? kept + j * args_.keys(key_dim) + work_.key_head * key_dim
                                        : work_.qkv(chunk, j) + first_channel(to);
      copy_piece(to.tiles + Tiles::place(j, piece), row + piece * (Tiles::piece_bytes / 4),
                 Tiles::piece_bytes);
      if (piece > 0 || is_known) continue;
      const auto* const products =
          reinterpret_cast<const uint4*>(args_.products) + work_.of_head(chunk, j) * ProductRow::units;
      copy_piece(to.products + j * ProductHalf::units,
                 products + (to.of_queries ? ProductRow::with_query : ProductRow::with_key), half_row);
    }
  }

  // What is left of the state by the thread's row, of the row behind the chunk, and what the row takes in.
  __device__ void find_gates(const ChunkRows& chunk) {
    decay_ = left_ = beta_ = 0;
    if (thread_ >= chunk.past) return;
    const double* const kept = in_slot(args_.slots.decays, args_.slot_bytes, work_.rows.slot) + work_.head;
    const double sum = thread_ < chunk.open ? kept[thread_ * args_.value_heads]
                                            : args_.decays[work_.of_head(chunk, thread_)];
    decay_ = decay_of(sum);
    if (thread_ >= chunk.open) beta_ = args_.betas[work_.of_head(chunk, thread_)];
    if (chunk.past == delta_chunk)
      left_ = decay_of(args_.decays[work_.of_head(chunk, delta_chunk - 1)] - sum);
  }
  __device__ void put_gates(int half) const {
    if (thread_ >= delta_chunk) return;
    shared_.decays[half][thread_] = decay_;
    shared_.left[half][thread_] = left_;
    shared_.betas[half][thread_] = beta_;
  }

  const ChunkWork<key_dim, value_dim>& work_;
  const DeltaKernelArgs& args_;
  ChunkShared<key_dim>& shared_;
  const int thread_;
  float decay_ = 0, left_ = 0, beta_ = 0;
};

}  // namespace nibble
