// What the kernel for many tokens works on: its tiles, and what lies in a block's shared memory.
#pragma once

#include "ops/cuda/ring_stage.cuh"
#include "ops/moe/cuda/k_stages.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_many_gather.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"

namespace nibble::moe_many {

inline constexpr int fetch_threads = 128;  // a warpgroup's
inline constexpr int fetch_registers = 40;
inline constexpr int most_item_granules = 12;
inline constexpr int max_stages = 8;
inline constexpr int item_slots = 2;
// Of a block's 227 KB; items, barriers and experts take the rest.
inline constexpr int ring_limit = 213 * 1024;

constexpr int min_of(int a, int b) { return a < b ? a : b; }

// What a launch has code for: the widths of tiles, the granules of an item (a warp each), the k64 blocks of a
// stage, and how activations come: in the stages of the weights, or a block a stage in a ring of their own.
template <class Layout_, int granules_, int blocks_, int input_stages_, const MoeManyWidths& widths_>
struct Tiling {
  using Layout = Layout_;
  static constexpr int granules = granules_, blocks = blocks_;
  static constexpr int product_threads = granules * 32, threads = product_threads + fetch_threads;
  // Of a thread that multiplies: what a launch of so many threads leaves when the others keep theirs.
  static constexpr int registers =
      (65536 / threads / 8 * 8 * threads - fetch_threads * fetch_registers) / product_threads / 8 * 8;
  static constexpr MoeManyWidths widths = widths_;
  static constexpr int input_stages = input_stages_;  // 0: activations lie in the stages of the weights
  static constexpr bool together = input_stages == 0;
  static constexpr int box_bytes = granules * granule_block_bytes<Layout>;  // of a stage's k64 block
  static constexpr int weight_bytes = blocks * box_bytes;                   // of a stage
  static constexpr int block_bytes = widths.largest() * moe_row_bytes;      // of the widest tile's k64 block
  static constexpr int stage_bytes = weight_bytes + (together ? blocks * block_bytes : 0);
  static constexpr int stages = min_of(max_stages, (ring_limit - input_stages * block_bytes) / stage_bytes);
};
template <class Layout>
using FewTokens = Tiling<Layout, 12, 5, 0, moe_many_widths_of_few>;
template <class Layout>
using SomeTokens = Tiling<Layout, 12, 5, 10, moe_many_widths_of_some>;
template <class Layout>
using ManyTokens = Tiling<Layout, 8, 5, 7, moe_many_widths_of_many>;

// Calls visit(block, count) for the k64 blocks of each stage in turn; no stage crosses the border of a chunk.
template <class Visit>
__device__ __forceinline__ void for_stages(const KChunks& chunks, const Visit& visit) {
  for (const KChunk& chunk : chunks.chunk) {
    int block = chunk.begin;
    for (int stage = 0; block < chunk.begin + chunk.blocks; ++stage) {
      const int count = chunk.stage_blocks(stage);
      visit(block, count);
      block += count;
    }
  }
}

// What a block does next. All of gate_up is dealt out before down, so that what an item waits for is done by
// blocks that wait for nobody's later items.
enum class Work : std::int32_t {
  none,     // there is nothing left
  gate_up,  // a tile of x times some rows, to a tile of h
  down,     // a tile of h times some rows, to rows of `out`
};

// A chunk's stages in a word: a warp has the next chunk's before it needs it.
struct PackedChunk {
  std::uint32_t word;

  __device__ static PackedChunk of(const KChunk& chunk) {
    return {static_cast<std::uint32_t>(chunk.blocks | chunk.stage << 16 | chunk.longer << 24)};
  }
  __device__ int blocks() const { return static_cast<int>(word & 0xffffu); }
  __device__ int stage() const { return static_cast<int>(word >> 16 & 0xffu); }
  __device__ int longer() const { return static_cast<int>(word >> 24); }
};

// Lies in shared memory.
struct alignas(16) Item {
  Work work;
  std::int32_t width;   // of the tile
  std::int32_t blocks;  // k64 blocks of the product's K
  PackedChunk chunks[granule_k_chunks];
  std::int32_t granule, granules;  // the first of this item; all of the matrix
  std::int32_t h_columns;
  PairFactors factors;         // of the sums
  bool biased;                 // else there is nothing in `bias`
  std::int32_t row;            // of the first granule among all experts'
  bool weights_once;           // nobody else reads them
  const std::uint8_t* inputs;  // the tile's
  std::uint8_t* tile;          // of h
  float* out;                  // [slots, out_columns]
  std::int32_t out_columns;
  std::uint32_t* done;     // counts what is done of the tile that this is a part of
  std::int32_t* slots_at;  // the tile's
  alignas(16) Bf16 bias[most_item_granules * granule_rows];
  alignas(16) std::int32_t slots[moe_many_widest_tile];
};

template <class Tiles>
struct Product {
  using Layout = typename Tiles::Layout;
  // Of all experts' granules; a box is a stage's: of one block, of two, .. Those of no stage are not there.
  ptx::TensorMap weights[Tiles::blocks];
  const Bf16* bias;  // [experts, rows]; null: without
  GranuleShapeOf<Layout> shape;
  KChunks chunks;
  typename Layout::SumFactor factor;
  int row_items;  // items over its rows
};

// Where products of slots go: to the rank that adds up their rows, which has them where this one has them.
// Alone everything is the first rank's, and nothing apart.
struct ManyPeers {
  std::ptrdiff_t apart[most_ranks] = {};  // bytes from this rank's products to each rank's
  std::uint64_t of_slots_a_rank = 0;      // 2^40 over them, rounded up

  __device__ bool are_none() const { return of_slots_a_rank == 0; }
  // Exact for less than 2^20 slots, and as many of a rank: what was rounded up comes to less than 2^40.
  __device__ std::ptrdiff_t of_slot(int slot) const {
    return apart[static_cast<std::uint64_t>(static_cast<unsigned>(slot)) * of_slots_a_rank >> 40];
  }
};

template <class Tiles>
struct ManyParams {
  Product<Tiles> products[2];  // gate_up, down
  MoeManyPlaces places;
  MoeManyTokens tokens;
  int experts;
  MoeManyWidths widths;
  float* out;  // [slots, hidden]
  GatedUnit unit;
  ManyPeers peers;
};

// Of a stage, `full` says that its bytes have come, `empty` that all who read it have done so. Of an item,
// `full` that it has been dealt, `ready` that its inputs are there, `done` that all warps that multiply have,
// `empty` that all who fetch and announce have looked at it; `wanted` that it is time for the next.
template <class Tiles>
struct Barriers {
  std::uint64_t weights_full[Tiles::stages], weights_empty[Tiles::stages];
  std::uint64_t inputs_full[Tiles::input_stages + 1], inputs_empty[Tiles::input_stages + 1];
  std::uint64_t item_full[item_slots], item_ready[item_slots], item_done[item_slots], item_empty[item_slots];
  std::uint64_t item_wanted;
};

struct Turns {
  RingStage weights, inputs;
};

// The block's shared memory.
template <class Tiles>
struct Shared {
  Barriers<Tiles> barriers;
  Item items[item_slots];
  ExpertTable<Tiles::threads> table;
  GatherRoom<Tiles::granules> gather;
  alignas(128) std::uint8_t weights[Tiles::stages][Tiles::stage_bytes];
  alignas(128) std::uint8_t
      inputs[Tiles::together ? 1 : Tiles::input_stages][Tiles::together ? 16 : Tiles::block_bytes];
};
template <class Tiles>
__device__ __forceinline__ Shared<Tiles>& shared_of_block() {
  return *reinterpret_cast<Shared<Tiles>*>(ptx::dynamic_shared());
}

}  // namespace nibble::moe_many
