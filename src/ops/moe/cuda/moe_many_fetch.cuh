// The warps of a block that deal its items out, fetch for them and announce them.
#pragma once

#include "ops/cuda/ring_stage.cuh"
#include "ops/moe/cuda/moe_many_work.cuh"
#include "ops/ptx/give_up.cuh"

namespace nibble::moe_many {

inline constexpr int most_shares = 8;  // of a tile, for those who gather it

// All items of a launch, in the order of their numbers, and what is gathered before: a block's shares and its
// first item follow from its own number, so that nobody asks for them.
struct Deal {
  int tiles;
  int shares;                     // of a tile's gathering
  int gate_up_items, down_items;  // of a tile
  int down;                       // the first of down's
  int all;

  template <class Tiles>
  __device__ Deal(const ManyParams<Tiles>& params, int tiles_)
      : tiles(tiles_),
        shares(max(1, min(min(most_shares, params.products[0].shape.blocks()),
                          static_cast<int>(gridDim.x) / max(1, tiles)))),
        gate_up_items(params.products[0].row_items),
        down_items(params.products[1].row_items),
        down(tiles * gate_up_items),
        all(down + tiles * down_items) {}

  __device__ Work work(int index) const {
    return index >= all ? Work::none : index >= down ? Work::down : Work::gate_up;
  }
  // Calls gather(tile, part) for each of the block's shares.
  template <class Gather>
  __device__ __forceinline__ void for_shares(const Gather& gather) const {
    for (int share = static_cast<int>(blockIdx.x); share < tiles * shares;
         share += static_cast<int>(gridDim.x))
      gather(share / shares, share % shares);
  }
};

// What has to be there before an item's inputs are: `count` parts of a tile, of *ready.
struct Awaited {
  std::uint32_t* ready;
  std::uint32_t count;
};

__device__ __forceinline__ std::uint8_t* tile_in(std::uint8_t* tiles, const MoeManyTile& tile, int blocks) {
  return tiles + static_cast<std::size_t>(tile.row) * static_cast<std::size_t>(blocks) * moe_row_bytes;
}

// Fills in an item, part `part` of a tile; by one thread.
template <class Tiles>
__device__ __forceinline__ Awaited fill_item(const ManyParams<Tiles>& params, const Deal& deal, Work work,
                                             int tile_index, int part, const MoeManyTile& tile, Item& item,
                                             std::uint64_t* full) {
  using Layout = typename Tiles::Layout;
  const MoeManyPlaces& places = params.places;
  const Product<Tiles>& product = params.products[work == Work::down];
  const GranuleShapeOf<Layout>& down = params.products[1].shape;
  std::uint8_t* const x = tile_in(places.x, tile, params.products[0].shape.blocks());
  std::uint8_t* const h = tile_in(places.h, tile, down.blocks());
  std::uint32_t *const x_ready = places.x_ready + tile_index, *const h_ready = places.h_ready + tile_index;
  const int granule = part * Tiles::granules;
  item.work = work;
  item.width = tile.width;
  item.blocks = product.shape.blocks();
  for (int chunk = 0; chunk < granule_k_chunks; ++chunk)
    item.chunks[chunk] = PackedChunk::of(product.chunks.chunk[chunk]);
  item.granule = granule;
  item.granules = product.shape.granules();
  item.h_columns = down.cols;
  item.factors = product.factor.of(tile.expert);
  item.biased = product.bias != nullptr;
  item.row = tile.expert * product.shape.granules() + granule;
  item.weights_once = tile.is_all;
  item.inputs = work == Work::down ? h : x;
  item.tile = h;
  item.out = params.out;
  item.out_columns = down.rows;
  item.done = h_ready;
  item.slots_at = places.slots + tile.row;
  if (item.biased) {
    const std::uint32_t bytes =
        static_cast<std::uint32_t>(min(Tiles::granules, item.granules - granule)) * granule_rows * 2;
    ptx::mbarrier_arrive_expecting(full, bytes);
    ptx::bulk_copy_to_shared(item.bias, product.bias + static_cast<std::size_t>(item.row) * granule_rows,
                             bytes, full);
  } else {
    ptx::mbarrier_arrive(full);
  }
  if (work == Work::gate_up) return {x_ready, static_cast<std::uint32_t>(deal.shares)};
  return {h_ready, static_cast<std::uint32_t>(deal.gate_up_items)};
}

// The warp that takes items from the common counter, each when the one before is about to be fetched, and
// waits for their inputs.
template <class Tiles>
__device__ __forceinline__ void deal_items(const ManyParams<Tiles>& params, const Deal& deal, int lane) {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  const int first_counted = static_cast<int>(gridDim.x);  // items before it are their blocks' first
  int number = static_cast<int>(blockIdx.x);              // in lane 0
  RingStage turn;
  std::uint32_t wanted = 0;
  while (true) {
    const int index = __shfl_sync(all_lanes, number, 0);
    const Work work = deal.work(index);
    int tile_index = 0, part = 0;
    MoeManyTile tile{};
    if (work != Work::none) {
      const int parts = work == Work::down ? deal.down_items : deal.gate_up_items;
      const int of_work = work == Work::down ? index - deal.down : index;
      tile_index = of_work / parts, part = of_work - tile_index * parts;
      tile = shared.table.tile(tile_index, params.experts, params.widths, lane);
    }
    if (lane == 0) {
      Item& item = shared.items[turn.stage];
      std::uint64_t* const full = &barriers.item_full[turn.stage];
      ptx::mbarrier_wait(&barriers.item_empty[turn.stage], turn.parity ^ 1);
      if (work == Work::none) {
        item.work = work;
        ptx::mbarrier_arrive(full);
        ptx::mbarrier_arrive(&barriers.item_ready[turn.stage]);
        // Blocks that had a first item count one too many each, so as many as there are items; who counts
        // last leaves the counter as it was.
        if (index - first_counted == deal.all - 1)
          atomicAdd(params.places.next_item, 0u - static_cast<unsigned>(deal.all));
      } else {
        const Awaited awaited = fill_item<Tiles>(params, deal, work, tile_index, part, tile, item, full);
        // Whoever stores these inputs has taken its items earlier.
        ptx::await_count(awaited.ready, awaited.count, params.places.stuck, Stuck::expert_tile);
        ptx::mbarrier_arrive(&barriers.item_ready[turn.stage]);
        // No sooner than that: who takes an item must be the first to have time for it.
        ptx::mbarrier_wait(&barriers.item_wanted, wanted);
        number = first_counted + static_cast<int>(atomicAdd(params.places.next_item, 1u));
      }
    }
    if (work == Work::none) return;
    wanted ^= 1;
    turn.next(item_slots);
  }
}

// The thread that fetches weights, chunk after chunk: a box a stage. The granules past the matrix's last are
// brought and not looked at.
template <class Tiles>
__device__ __forceinline__ void fetch_weights(const ManyParams<Tiles>& params) {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  RingStage turn, weights;
  while (true) {
    ptx::mbarrier_wait(&barriers.item_full[turn.stage], turn.parity);
    const Item& item = shared.items[turn.stage];
    const Work work = item.work;
    if (work == Work::none) return;
    const Product<Tiles>& product = params.products[work == Work::down];
    const int row = item.row;
    const bool once = item.weights_once;
    ptx::await_loads(static_cast<std::uint32_t>(row) + once);
    ptx::mbarrier_arrive(&barriers.item_empty[turn.stage]);
    turn.next(item_slots);
    for_stages(product.chunks, [&](int block, int count) {
      const ptx::TensorMap& map = product.weights[count - 1];
      std::uint64_t* const come = &barriers.weights_full[weights.stage];
      if (block == product.shape.chunk_begin(granule_k_chunks - 1))
        ptx::mbarrier_arrive(&barriers.item_wanted);
      ptx::mbarrier_wait(&barriers.weights_empty[weights.stage], weights.parity ^ 1);
      ptx::mbarrier_arrive_expecting(come, static_cast<std::uint32_t>(count * Tiles::box_bytes));
      if (once) {
        ptx::box_copy_once_to_shared(shared.weights[weights.stage], map, block, row, come);
      } else {
        ptx::box_copy_to_shared(shared.weights[weights.stage], map, block, row, come);
      }
      weights.next(Tiles::stages);
    });
  }
}

// The thread that fetches activations, and for rows of `out` which they are.
template <class Tiles>
__device__ __forceinline__ void fetch_inputs(const ManyParams<Tiles>& params) {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  RingStage turn, inputs;
  while (true) {
    ptx::mbarrier_wait(&barriers.item_ready[turn.stage], turn.parity);
    Item& item = shared.items[turn.stage];
    const Work work = item.work;
    if (work == Work::none) return;
    const int width = item.width, blocks = item.blocks;
    const std::uint8_t* const from = item.inputs;
    const std::int32_t* const slots_at = item.slots_at;
    ptx::await_loads(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(from)));
    ptx::mbarrier_arrive(&barriers.item_empty[turn.stage]);
    turn.next(item_slots);
    ptx::fence_bulk_copies();  // they come from other blocks' ordinary stores
    const std::uint32_t slot_bytes = work == Work::down ? static_cast<std::uint32_t>(width) * 4 : 0;
    const auto fetch = [&](std::uint64_t* full, std::uint64_t* empty, std::uint8_t* to, int block,
                           int count) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(count * width) * moe_row_bytes;
      ptx::mbarrier_wait(empty, inputs.parity ^ 1);
      ptx::mbarrier_arrive_expecting(full, bytes + (block == 0 ? slot_bytes : 0));
      ptx::bulk_copy_to_shared(to, from + block * width * moe_row_bytes, bytes, full);
      if (block == 0 && slot_bytes > 0) ptx::bulk_copy_to_shared(item.slots, slots_at, slot_bytes, full);
    };
    if constexpr (Tiles::together) {
      for_stages(params.products[work == Work::down].chunks, [&](int block, int count) {
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

// Tells other blocks that one more part of a tile is stored, by whom this thread has met since.
__device__ __forceinline__ void tell_of_tile(std::uint32_t* done) {
  ptx::fence_bulk_copies();  // which bring it to them
  ptx::count_up_release(done);
}

// The thread that tells other blocks of what is done of a tile: waiting until it is visible to them would
// hold up those who do it.
template <class Tiles>
__device__ __forceinline__ void announce(const ManyParams<Tiles>& params, const Deal& deal) {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  const std::uint32_t stored = static_cast<std::uint32_t>(deal.gate_up_items),
                      read = static_cast<std::uint32_t>(deal.down_items);
  RingStage turn;
  while (true) {
    ptx::mbarrier_wait(&barriers.item_full[turn.stage], turn.parity);
    const Item& item = shared.items[turn.stage];
    const Work work = item.work;
    if (work == Work::none) return;
    std::uint32_t* const done = item.done;
    ptx::mbarrier_wait(&barriers.item_done[turn.stage], turn.parity);
    if (work == Work::gate_up) {
      tell_of_tile(done);
    } else if (ptx::add_acquire_release(done, 1) == stored + read - 1) {
      // Nobody looks at the tile's counters any more.
      *done = 0;
      params.places.x_ready[done - params.places.h_ready] = 0;
    }
    ptx::mbarrier_arrive(&barriers.item_empty[turn.stage]);
    turn.next(item_slots);
  }
}

}  // namespace nibble::moe_many
