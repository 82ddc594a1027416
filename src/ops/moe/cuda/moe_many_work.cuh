// What the kernel for many tokens works on: its tiles, what lies in a block's shared memory, and the threads
// that fetch into it.
#pragma once

#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_many_tiles.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble::moe_many {

inline constexpr int fetch_threads = 128;  // a warpgroup's, of which three warps have work
inline constexpr int fetch_registers = 24;
inline constexpr int most_item_granules = 12;
inline constexpr int max_stages = 8;
inline constexpr int max_tile = 160;
inline constexpr int item_slots = 2;
inline constexpr int ring_limit = 223 * 1024;  // of a block's 227 KB; items and barriers take the rest

constexpr int min_of(int a, int b) { return a < b ? a : b; }

// What a launch has code for: the widths of tiles, the granules of an item (a warp each), the k64 blocks of a
// stage, and how activations come: in the stages of the weights, or a block a stage in a ring of their own.
template <class Layout_, int granules_, int blocks_, int input_stages_, int... widths_>
struct Tiling {
  using Layout = Layout_;
  static constexpr int granules = granules_, blocks = blocks_;
  static constexpr int product_threads = granules * 32, threads = product_threads + fetch_threads;
  // Of a thread that multiplies: what a launch of so many threads leaves when the others keep theirs.
  static constexpr int registers =
      (65536 / threads / 8 * 8 * threads - fetch_threads * fetch_registers) / product_threads / 8 * 8;
  static constexpr MoeManyWidths widths{sizeof...(widths_), {widths_...}};
  static constexpr int input_stages = input_stages_;  // 0: activations lie in the stages of the weights
  static constexpr bool together = input_stages == 0;
  static constexpr int granule_bytes = blocks * granule_block_bytes<Layout>;  // of a stage's granule
  static constexpr int weight_bytes = granules * granule_bytes;               // of a stage
  static constexpr int block_bytes = widths.largest() * moe_row_bytes;  // of the widest tile's k64 block
  static constexpr int stage_bytes = weight_bytes + (together ? blocks * block_bytes : 0);
  static constexpr int stages = min_of(max_stages, (ring_limit - input_stages * block_bytes) / stage_bytes);
};
template <class Layout>
using FewTokens = Tiling<Layout, 12, 5, 0, 8, 16, 24, 32, 40>;
template <class Layout>
using SomeTokens = Tiling<Layout, 12, 5, 10, 64, 80>;
template <class Layout>
using ManyTokens = Tiling<Layout, 8, 5, 7, 128, 160>;

// Calls visit(block, count) for the k64 blocks of each stage in turn; no stage crosses the border of a chunk.
template <class Tiles, class Visit>
__device__ __forceinline__ void for_stages(const GranuleShapeOf<typename Tiles::Layout>& shape,
                                           const Visit& visit) {
  for (int chunk = 0; chunk < granule_k_chunks; ++chunk) {
    const int end = shape.chunk_begin(chunk + 1);
    for (int block = shape.chunk_begin(chunk); block < end; block += Tiles::blocks)
      visit(block, min(Tiles::blocks, end - block));
  }
}

// What the block works on next: a tile of tokens times some rows of one product. Lies in shared memory.
struct alignas(16) Item {
  std::int32_t width;              // of the tile; 0: there is nothing left
  std::int32_t second;             // 0: gate_up into a tile of h; 1: down into rows of `out`
  std::int32_t blocks;             // k64 blocks of the product
  std::int32_t granule, granules;  // the first of this item; all of the matrix
  std::int32_t h_columns;
  float scale, swiglu_limit;   // scale: of the sums
  const std::uint8_t* inputs;  // the tile's
  std::uint8_t* h;             // the tile's
  std::uint32_t* h_ready;      // the tile's
  float* out;                  // [slots, out_columns]
  std::int32_t out_columns;
  std::int32_t h_items;  // that make up the tile of h
  alignas(16) Bf16 bias[most_item_granules * granule_rows];
  alignas(16) std::int32_t slots[max_tile];
};

template <class Layout>
struct Product {
  const std::uint8_t* weights;
  const Bf16* bias;  // [experts, rows]
  std::uint8_t* inputs;
  GranuleShapeOf<Layout> shape;
  typename Layout::SumFactor factor;
  int row_items;  // items over its rows
};

template <class Layout>
struct ManyParams {
  Product<Layout> products[2];  // gate_up, down
  MoeManyPlaces places;
  float* out;  // [slots, hidden]
  float swiglu_limit;
};

// Of each, `full` says that a stage's bytes have come, `empty` that all who read it have done so.
template <class Tiles>
struct Barriers {
  std::uint64_t weights_full[Tiles::stages], weights_empty[Tiles::stages];
  std::uint64_t inputs_full[Tiles::input_stages + 1], inputs_empty[Tiles::input_stages + 1];
  std::uint64_t item_full[item_slots], item_empty[item_slots];
  std::uint64_t h_stored[item_slots];  // by all warps that multiply
};

// The stage of a ring that comes next, and the parity of the phase that fills it.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
struct Turns {
  Turn weights, inputs;
};

// The block's shared memory.
template <class Tiles>
struct Shared {
  Barriers<Tiles> barriers;
  Item items[item_slots];
  alignas(128) std::uint8_t weights[Tiles::stages][Tiles::stage_bytes];
  alignas(128) std::uint8_t
      inputs[Tiles::together ? 1 : Tiles::input_stages][Tiles::together ? 16 : Tiles::block_bytes];
};
template <class Tiles>
__device__ __forceinline__ Shared<Tiles>& shared_of_block() {
  return *reinterpret_cast<Shared<Tiles>*>(ptx::dynamic_shared());
}

// The warp that takes items from the common counter and fetches their weights, chunk after chunk.
template <class Tiles>
__device__ __forceinline__ void fetch_weights(const ManyParams<typename Tiles::Layout>& params, int lane) {
  using Layout = typename Tiles::Layout;
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Turn turn, weights;
  std::int32_t* const next_item = params.places.next_item;
  const int tiles = *params.places.tile_count;
  const int first_items = tiles * params.products[0].row_items;
  const int all_items = first_items + tiles * params.products[1].row_items;
  while (true) {
    int index = lane == 0 ? atomicAdd(next_item, 1) : 0;
    index = __shfl_sync(0xffffffffu, index, 0);
    const int second = index >= first_items;
    const Product<Layout>& product = params.products[second];
    const int of_product = second ? index - first_items : index;
    const int tile_index = of_product / product.row_items;
    const int granule = (of_product - tile_index * product.row_items) * Tiles::granules;
    const int granules = min(Tiles::granules, product.shape.granules() - granule);
    Item& item = shared.items[turn.stage];
    std::uint64_t* const full = &shared.barriers.item_full[turn.stage];
    ptx::mbarrier_wait(&shared.barriers.item_empty[turn.stage], turn.parity ^ 1);
    turn.next(item_slots);
    if (index >= all_items) {
      if (lane == 0) {
        item.width = 0;
        ptx::mbarrier_arrive(full);
      }
      return;
    }
    const MoeManyTile tile = params.places.tiles[tile_index];
    const std::size_t matrix_granule =
        static_cast<std::size_t>(tile.expert) * static_cast<std::size_t>(product.shape.granules()) +
        static_cast<std::size_t>(granule);
    if (lane == 0) {
      const std::size_t row = static_cast<std::size_t>(tile.row);
      const GranuleShapeOf<Layout>& down = params.products[1].shape;
      item.width = tile.width;
      item.second = second;
      item.blocks = product.shape.blocks();
      item.granule = granule;
      item.granules = product.shape.granules();
      item.h_columns = down.cols;
      item.scale = product.factor.of(tile.expert);
      item.swiglu_limit = params.swiglu_limit;
      item.inputs = product.inputs + row * static_cast<std::size_t>(product.shape.blocks()) * moe_row_bytes;
      item.h = params.products[1].inputs + row * static_cast<std::size_t>(down.blocks()) * moe_row_bytes;
      item.h_ready = params.places.h_ready + tile_index;
      item.out = params.out;
      item.out_columns = down.rows;
      item.h_items = params.products[0].row_items;
      const std::uint32_t bias_bytes = static_cast<std::uint32_t>(granules) * granule_rows * 2;
      const std::uint32_t slot_bytes = static_cast<std::uint32_t>(tile.width) * 4;
      ptx::mbarrier_arrive_expecting(full, bias_bytes + slot_bytes);
      ptx::bulk_copy_to_shared(item.bias, product.bias + matrix_granule * granule_rows, bias_bytes, full);
      ptx::bulk_copy_to_shared(item.slots, params.places.slots + row, slot_bytes, full);
    }
    const std::uint8_t* from = product.weights + (matrix_granule + static_cast<std::size_t>(lane)) *
                                                     static_cast<std::size_t>(product.shape.granule_bytes());
    for_stages<Tiles>(product.shape, [&](int block, int count) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(count) * granule_block_bytes<Layout>;
      std::uint64_t* const come = &shared.barriers.weights_full[weights.stage];
      ptx::mbarrier_wait(&shared.barriers.weights_empty[weights.stage], weights.parity ^ 1);
      if (lane == 0) ptx::mbarrier_arrive_expecting(come, static_cast<std::uint32_t>(granules) * bytes);
      __syncwarp();  // the bytes are announced before they can come
      if (lane < granules) {
        ptx::bulk_copy_to_shared(shared.weights[weights.stage] + lane * Tiles::granule_bytes,
                                 from + block * granule_block_bytes<Layout>, bytes, come);
      }
      weights.next(Tiles::stages);
    });
  }
}

// The thread that fetches activations.
template <class Tiles>
__device__ __forceinline__ void fetch_inputs() {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Turn turn, inputs;
  while (true) {
    ptx::mbarrier_wait(&shared.barriers.item_full[turn.stage], turn.parity);
    const Item& item = shared.items[turn.stage];
    const int width = item.width, blocks = item.blocks;
    if (width == 0) return;
    // Whoever stores this h has taken its items earlier, and waits for nobody.
    while (item.second && ptx::load_acquire(item.h_ready) < static_cast<unsigned>(item.h_items)) {
    }
    ptx::fence_bulk_copies();  // h comes from other blocks' ordinary stores
    const std::uint8_t* const from = item.inputs;
    ptx::await_loads(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(from)));
    ptx::mbarrier_arrive(&shared.barriers.item_empty[turn.stage]);
    turn.next(item_slots);
    const auto fetch = [&](std::uint64_t* full, std::uint64_t* empty, std::uint8_t* to, int block,
                           int count) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(count * width) * moe_row_bytes;
      ptx::mbarrier_wait(empty, inputs.parity ^ 1);
      ptx::mbarrier_arrive_expecting(full, bytes);
      ptx::bulk_copy_to_shared(to, from + block * width * moe_row_bytes, bytes, full);
    };
    Barriers<Tiles>& barriers = shared.barriers;
    if constexpr (Tiles::together) {
      for_stages<Tiles>({.rows = 0, .cols = blocks * granule_k}, [&](int block, int count) {
        fetch(&barriers.weights_full[inputs.stage], &barriers.weights_empty[inputs.stage],
              shared.weights[inputs.stage] + Tiles::weight_bytes, block, count);
        inputs.next(Tiles::stages);
      });
    } else {
      for (int block = 0; block < blocks; ++block) {
        fetch(&barriers.inputs_full[inputs.stage], &barriers.inputs_empty[inputs.stage],
              shared.inputs[inputs.stage], block, 1);
        inputs.next(Tiles::input_stages);
      }
    }
  }
}

// The thread that tells other blocks of h: waiting until it is visible to them would hold up those who store
// it.
template <class Tiles>
__device__ __forceinline__ void announce_h() {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Turn turn;
  while (true) {
    ptx::mbarrier_wait(&shared.barriers.item_full[turn.stage], turn.parity);
    const Item& item = shared.items[turn.stage];
    if (item.width == 0 || item.second) break;
    ptx::mbarrier_wait(&shared.barriers.h_stored[turn.stage], turn.parity);
    ptx::fence_bulk_copies();  // which bring h to other blocks
    ptx::count_up_release(item.h_ready);
    ptx::mbarrier_arrive(&shared.barriers.item_empty[turn.stage]);
    turn.next(item_slots);
  }
  // No h comes any more.
  while (shared.items[turn.stage].width != 0) {
    ptx::mbarrier_arrive(&shared.barriers.item_empty[turn.stage]);
    turn.next(item_slots);
    ptx::mbarrier_wait(&shared.barriers.item_full[turn.stage], turn.parity);
  }
}

}  // namespace nibble::moe_many
