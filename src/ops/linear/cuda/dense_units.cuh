// What the kernels for few tokens and for one row share: how a product's work is dealt to blocks, and what
// they leave each other.
//
// Units of (tile of 64 rows, chunk of K) in contiguous ranges as equal as they get. The block that has a
// tile's first chunk adds the chunks up, in their order: so ranges move bytes in time but no bit. The tile is
// the last of its range, while others have the tile's later chunks at the beginning of theirs and leave their
// sums in memory, where mostly they have come when they are asked for. What is left says so itself: a place
// holds bits that no sum has until then (absent.h), so nobody counts and nothing is ordered.
#pragma once

#include "ops/cuda/absent.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/linear/cuda/dense_ring.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {

inline constexpr int product_threads = 128;

template <class Output>
struct FewParams {
  const std::uint8_t* weights;
  const std::uint8_t* x;
  DenseShape shape;
  int first_token, tokens;  // those of this launch end with tokens
  int stages;               // of the ring
  float4* sums;             // [blocks, dense_k_chunks, columns / 8, product_threads]
  std::uint32_t* stuck;     // LinearCudaWorkspace's
  Output output;
};

// Units in order of (tile, chunk); block b has those from border(b) on.
struct Units {
  unsigned all;  // times the blocks they fit 32 bits, whose divisions are a fifth as long
  __device__ int border(unsigned block) const { return static_cast<int>(all * block / gridDim.x); }
  __device__ int owner(int unit) const {  // the block whose range holds it
    return static_cast<int>(((static_cast<unsigned>(unit) + 1) * gridDim.x - 1) / all);
  }
};

// The stages that a range of units takes, one after the other. A tile's units are so many of its chunks, from
// first_chunk on.
template <int chunks = dense_k_chunks>
struct Pieces {
  const DenseShape& shape;
  int unit, end_unit, first_chunk;
  int block = 0, end_block = 0;

  __device__ Pieces(const DenseShape& of, int begin, int end, int first_chunk_of_tile = 0)
      : shape(of), unit(begin), end_unit(end), first_chunk(first_chunk_of_tile) {
    if (unit < end_unit) enter();
  }
  __device__ void enter() {
    block = shape.chunk_begin(chunk());
    end_block = shape.chunk_begin(chunk() + 1);
    while (block == end_block && ++unit < end_unit) {  // chunks of a short K may be empty
      block = shape.chunk_begin(chunk());
      end_block = shape.chunk_begin(chunk() + 1);
    }
  }
  __device__ bool more() const { return unit < end_unit; }
  __device__ int tile() const { return unit / chunks; }
  __device__ int chunk() const { return first_chunk + unit % chunks; }
  __device__ int count() const { return min(stage_blocks, end_block - block); }
  __device__ void next() {
    block += count();
    if (block == end_block && ++unit < end_unit) enter();
  }
};

// A ring of so many stages, as who fills it knows it; stuck: LinearCudaWorkspace's.
struct Filled {
  std::uint64_t* empty;
  int stages;
  std::uint32_t* stuck;
};

// Runs fetch(piece, stage, index) for each stage of a range, when its place in the ring is free.
template <int chunks, class Fetch>
__device__ __forceinline__ RingTurn for_each_stage(Pieces<chunks> piece, const Filled& ring,
                                                   const Fetch& fetch) {
  RingTurn turn;
  int index = 0;
  for (; piece.more(); piece.next(), ++index, turn.next(ring.stages)) {
    turn.wait_empty(ring.empty, ring.stuck);
    fetch(piece, turn.stage, index);
  }
  return turn;
}

// Orders a stage's weights.
template <int chunks>
__device__ __forceinline__ void order_weights(const std::uint8_t* weights, const Pieces<chunks>& piece,
                                              std::uint8_t* stage, std::uint64_t* come) {
  const std::uint32_t bytes = static_cast<std::uint32_t>(piece.count() * dense_block_bytes);
  ptx::mbarrier_arrive_expecting(come, bytes);
  ptx::bulk_copy_once_to_shared(stage,
                                weights + static_cast<std::size_t>(piece.tile()) * piece.shape.tile_bytes() +
                                    static_cast<std::size_t>(piece.block) * dense_block_bytes,
                                bytes, come);
}

// Sums of a chunk of a tile as blocks leave them.
template <int columns>
constexpr int chunk_quads = columns / 8 * product_threads;

// Where a chunk's sums of a tile whose chunk 0 is block `owner`'s lie.
template <int columns>
__device__ __forceinline__ float4* sums_of(float4* sums, int owner, int chunk) {
  return sums + (owner * dense_k_chunks + chunk) * chunk_quads<columns>;
}

// A chunk's sums for the block that has the tile's first chunk.
template <int columns>
__device__ __forceinline__ void leave_sums(float4* place, const float (&sums)[columns / 2]) {
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
    ptx::store_relaxed(place + i * product_threads,
                       make_float4(but_absent(sums[4 * i]), but_absent(sums[4 * i + 1]),
                                   but_absent(sums[4 * i + 2]), but_absent(sums[4 * i + 3])));
  }
}

// Adds the sums of chunks [from, 8) of the block's last tile, which other blocks leave, and makes their
// places absent again for the next launch. All of a thread's are asked for together.
template <int columns>
__device__ __forceinline__ void add_left_sums(float (&totals)[columns / 2], float4* sums, int from,
                                              std::uint32_t* stuck) {
  const float nothing = absent_word();
  const auto place = [&](int chunk, int group) {
    return sums_of<columns>(sums, static_cast<int>(blockIdx.x), chunk) + threadIdx.x +
           group * product_threads;
  };
  float4 left[columns / 8][dense_k_chunks];
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
#pragma unroll
    for (int chunk = 1; chunk < dense_k_chunks; ++chunk) {
      if (chunk >= from) left[i][chunk] = ptx::load_relaxed(place(chunk, i));
    }
  }
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
    float* const four = totals + 4 * i;
#pragma unroll
    for (int chunk = 1; chunk < dense_k_chunks; ++chunk) {
      if (chunk < from) continue;
      // All lanes go around together: what diverges here would have later products one by one.
      for (unsigned polls = 0; __ballot_sync(0xffffffffu, is_absent(left[i][chunk])) != 0; ++polls) {
        if (polls == ptx::give_up_polls) ptx::give_up(stuck, Stuck::dense_sums);
        left[i][chunk] = ptx::load_relaxed(place(chunk, i));
      }
      ptx::store_relaxed(place(chunk, i), make_float4(nothing, nothing, nothing, nothing));
      four[0] += left[i][chunk].x, four[1] += left[i][chunk].y;
      four[2] += left[i][chunk].z, four[3] += left[i][chunk].w;
    }
  }
}

// A range of units, by the multiplying warpgroup. products.multiply makes the sums of so many k64 blocks,
// products.add_others those of the block's last tile that others leave.
template <int columns, class Output, class Products>
__device__ __forceinline__ void multiply_units(const FewParams<Output>& params, Products products,
                                               const Units& units, int begin, int end) {
  const DenseShape& shape = params.shape;
  float totals[columns / 2];
#pragma unroll
  for (float& total : totals) total = 0;
#pragma unroll 1
  for (int unit = begin; unit < end;) {
    const int tile = unit / dense_k_chunks, first = unit % dense_k_chunks;
    const int past = min(end - tile * dense_k_chunks, dense_k_chunks);
    // Fetched early, with the tile's products before their use.
    OutputNeeds<columns, Output> needs;
    if (first == 0) needs.read(params.output, tile, params.first_token, params.tokens);
    const int owner = units.owner(tile * dense_k_chunks);
#pragma unroll 1
    for (int chunk = first; chunk < past; ++chunk, ++unit) {
      float sums[columns / 2];
      products.multiply(sums, shape.chunk_begin(chunk), shape.chunk_begin(chunk + 1));
      if (first > 0) {
        leave_sums<columns>(sums_of<columns>(params.sums, owner, chunk) + threadIdx.x, sums);
      } else {
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
      }
    }
    if (first > 0) continue;
    if (past < dense_k_chunks) products.add_others(totals, params.sums, past, params.stuck);
    put_out<columns>(params.output, tile, params.first_token, params.tokens, totals, needs);
  }
}

}  // namespace nibble
