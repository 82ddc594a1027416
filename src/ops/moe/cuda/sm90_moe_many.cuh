// The expert layer for many tokens, of weights in granules of any format, on wgmma; the bits are those of the
// kernel for few tokens, whose order of additions (granules.h) it keeps.
//
//   sort      of many slots, by their experts (sorted_slots.h)
//   products  tiles of tokens (moe_many_tiles.cuh), gate_up, whose epilogue writes h as such tiles, and down
//   combine   a token's experts (moe_steps.cuh)
//
// A block a multiprocessor, and all of them resident, since they wait for one another. Each gathers its
// shares of the tiles, then takes items, the first by its own number and the others from a common counter:
// tiles times 192 or 128 rows of gate_up, then of down. One warp deals them out and waits for their tiles to
// be there, a thread fetches weights, another activations, by bulk copies into rings, and run ahead from item
// to item: weights are on their way while tiles are gathered. A thread tells other blocks what is done. Each
// of the other warps has a granule: it decodes its codes into the registers that wgmma reads its first
// operand from. So there is no barrier between these warps but the rings', and two where they gather.
//
// Why these tiles, for a k64 block of an item in MXFP4, in cycles of a multiprocessor at 1.77 GHz:
//
//   rows x tokens   weights   their share of what   products, 4,096   instructions of each of four
//                             DRAM gives, 19.9      FLOP a cycle      schedulers, 70 .. 90 a warp
//   192 x 16        6.5 KB    328                   96                210
//   192 x 64        6.5 KB    328                   384               270
//   128 x 160       4.4 KB    218                   640               180
//
// Few tokens an expert are bound by bytes and by decoding, which does not depend on the width: the more rows
// at once the better, and tiles as narrow as the tokens are few. Many are bound by the products: a tile as
// wide as registers allow, which hold a chunk's sums and those of the chunks before it (80 each for 160
// tokens). Bytes from the second-level cache come with the width: 24 KB for 128 x 160, 38 a cycle at the full
// rate of the products, near what it can give. A place without a token costs what one with a token does, so
// there is code for several widths: as many as leave the loops without registers in memory.
#pragma once

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/moe/cuda/granule_operands.cuh"
#include "ops/moe/cuda/moe_many_fetch.cuh"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble::moe_many {

// A lane's codes of a k64 block and the scales of its two rows, the even one's in the low bits.
struct Codes {
  uint4 words;
  std::uint32_t scales;
};

// The operand registers of two of a block's steps.
template <class Layout>
__device__ __forceinline__ void decode_steps(std::uint32_t (&a)[2][4], std::uint32_t first,
                                             std::uint32_t second, const LaneScale<Layout>& even,
                                             const LaneScale<Layout>& odd) {
  const PlacedPairs placed = placed_pairs<typename Layout::Pairs>(first, second);
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = (i % 2 == 0 ? even : odd).weights(placed.pair[i]);
}

// Stores h of a granule: the gate and the up projection of an element meet in a lane, elements that make up a
// word in lanes 4 apart.
template <int width>
__device__ __forceinline__ void store_h(const Item& item, int granule, int lane,
                                        const float (&totals)[width / 2], const PairFactors& bias,
                                        const GatedUnit& unit) {
  const int g = lane / 4, column = lane % 4 * 2 + g % 2;
  const auto place = [&](int element) {
    return item.tile + element / granule_k * (width * moe_row_bytes) +
           moe_tile_offset(width, column, element % granule_k);
  };
  std::uint8_t* const to = place(granule * (granule_rows / 2) + g / 2 * 2);
  const PairFactors factors = item.factors;
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
    float h[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      h[c] = gated_on_device(__fmul_rn(totals[4 * j + c], factors.even) + bias.even,
                             __fmul_rn(totals[4 * j + 2 + c], factors.odd) + bias.odd, unit);
    }
    const float other = __shfl_xor_sync(0xffffffffu, g % 2 ? h[0] : h[1], 4);
    *reinterpret_cast<std::uint32_t*>(to + j * 256) =
        g % 2 ? ptx::pack_bf16x2(other, h[1]) : ptx::pack_bf16x2(h[0], other);
  }
  // Past the last of h the weights are zero, but what they multiply must be a number.
  if (granule == item.granules - 1) {
    for (int pad = item.h_columns + g / 2 * 2; pad % granule_k != 0; pad += 8) {
      if (pad / granule_k * granule_k >= item.h_columns) break;
      for (int j = 0; j < width / 8; ++j) *reinterpret_cast<std::uint32_t*>(place(pad) + j * 256) = 0;
    }
  }
}

// Stores products of a granule's rows for the slots of a tile. apart(slot): bytes to the rank that adds up
// the slot's row.
template <int width, class Apart>
__device__ __forceinline__ void store_products(const Item& item, const Apart& apart, int granule, int lane,
                                               const float (&totals)[width / 2], const PairFactors& bias) {
  const PairFactors factors = item.factors;
  std::byte* const out = reinterpret_cast<std::byte*>(item.out + granule * granule_rows + lane / 4 * 2);
  const std::uint32_t row_bytes = static_cast<std::uint32_t>(item.out_columns) * sizeof(float);
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
    const uint2 slots = *reinterpret_cast<const uint2*>(item.slots + 8 * j + lane % 4 * 2);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int slot = static_cast<int>(c == 0 ? slots.x : slots.y);
      const float2 both = make_float2(__fmul_rn(totals[4 * j + c], factors.even) + bias.even,
                                      __fmul_rn(totals[4 * j + 2 + c], factors.odd) + bias.odd);
      if (slot >= 0) {
        *reinterpret_cast<float2*>(out + std::uint64_t{static_cast<std::uint32_t>(slot)} * row_bytes +
                                   apart(slot)) = both;
      }
    }
  }
}

// A warp's granule of an item. A block's steps are queued in twos, and the codes of two are decoded while the
// two before are multiplied.
template <class Tiles, int width>
__device__ __forceinline__ void multiply_item(Turns& turns, int slot, int warp, int lane,
                                              const ManyParams<Tiles>& params) {
  using Layout = typename Tiles::Layout;
  constexpr unsigned step_bytes = width * 32;
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  const Item& item = shared.items[slot];
  constexpr int block_bytes = granule_block_bytes<Layout>;
  const int scales_at = granule_code_bytes + granule_lane_scales<Layout>(lane) - lane * 16;
  float sums[width / 2], totals[width / 2];
  // A chunk without blocks adds a zero, and only to a minus zero does that matter.
  const float nothing = item.blocks < granule_k_chunks ? 0.0f : -0.0f;
#pragma unroll
  for (int i = 0; i < width / 2; ++i) sums[i] = 0, totals[i] = nothing;
  const auto add_chunk = [&] {
    ptx::wgmma_wait_all(sums);
#pragma unroll
    for (int i = 0; i < width / 2; ++i) totals[i] += sums[i];
  };
  // The products of the block before the last queued one have ended, and so have the lanes' loads.
  const auto leave = [&](std::uint64_t* empty) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty);
  };
  int left_stage = -1, left_inputs = -1;  // of this item, not yet said to be empty
  std::uint32_t a[2][2][4];
  const std::uint64_t inputs_ring = ptx::wgmma_operand<256>(shared.inputs);
  const std::uint64_t weights_ring = ptx::wgmma_operand<256>(shared.weights);
  bool begun = false;
  PackedChunk cut = item.chunks[0];
#pragma unroll 1
  for (int chunk = 0; chunk < granule_k_chunks; ++chunk) {
    int left = cut.blocks(), longer = cut.longer();
    const int least = cut.stage();
    if (chunk + 1 < granule_k_chunks) cut = item.chunks[chunk + 1];
    if (left == 0) continue;
    bool add = false;
#pragma unroll 1
    do {
      const int stage = turns.weights.stage, count = least + (longer > 0 ? 1 : 0);
      const std::uint8_t* const codes = shared.weights[stage] + warp * count * block_bytes + lane * 16;
      const std::uint8_t* const scales = codes + scales_at;
      const auto load = [&](int index) {
        return Codes{*reinterpret_cast<const uint4*>(codes + index * block_bytes),
                     load_lane_scales<Layout>(scales + index * block_bytes)};
      };
      ptx::mbarrier_wait(&barriers.weights_full[stage], turns.weights.parity);
      turns.weights.next(Tiles::stages);
      const std::uint64_t stage_inputs = ptx::wgmma_operand_at(
          weights_ring, static_cast<unsigned>(stage * Tiles::stage_bytes + Tiles::weight_bytes));
      Codes next = load(0);
      if (!add && begun) add_chunk();
      begun = true;
#pragma unroll
      for (int index = 0; index < Tiles::blocks; ++index) {
        std::uint64_t b;
        if constexpr (Tiles::together) {
          b = ptx::wgmma_operand_at(stage_inputs, static_cast<unsigned>(index) * 4 * step_bytes);
        } else {
          ptx::mbarrier_wait(&barriers.inputs_full[turns.inputs.stage], turns.inputs.parity);
          b = ptx::wgmma_operand_at(inputs_ring,
                                    static_cast<unsigned>(turns.inputs.stage * Tiles::block_bytes));
        }
        const LaneScale<Layout> even = even_scale<Layout>(next.scales), odd = odd_scale<Layout>(next.scales);
        ptx::wgmma_wait_but<1>();
        decode_steps<Layout>(a[0], next.words.x, next.words.y, even, odd);
        ptx::wgmma_fence();
        ptx::wgmma_bf16(sums, a[0][0], b, add);
        ptx::wgmma_bf16(sums, a[0][1], ptx::wgmma_operand_at(b, step_bytes), true);
        ptx::wgmma_commit();
        add = true;
        ptx::wgmma_wait_but<1>();  // and with it all products of the block before
        if (index == 0 && left_stage >= 0) leave(&barriers.weights_empty[left_stage]);
        if constexpr (!Tiles::together) {
          if (left_inputs >= 0 && lane == 0) ptx::mbarrier_arrive(&barriers.inputs_empty[left_inputs]);
          left_inputs = turns.inputs.stage;
          turns.inputs.next(Tiles::input_stages);
        }
        decode_steps<Layout>(a[1], next.words.z, next.words.w, even, odd);
        const bool last = index + 1 == Tiles::blocks || index + 1 == count;
        if (!last) next = load(index + 1);
        ptx::wgmma_fence();
        ptx::wgmma_bf16(sums, a[1][0], ptx::wgmma_operand_at(b, 2 * step_bytes), true);
        ptx::wgmma_bf16(sums, a[1][1], ptx::wgmma_operand_at(b, 3 * step_bytes), true);
        ptx::wgmma_commit();
        if (last) break;
      }
      left_stage = stage;
      left -= count;
      --longer;
    } while (left > 0);
  }
  add_chunk();
  leave(&barriers.weights_empty[left_stage]);
  if constexpr (!Tiles::together) leave(&barriers.inputs_empty[left_inputs]);

  const int granule = item.granule + warp;
  if (granule < item.granules) {
    const std::uint32_t stored =
        *reinterpret_cast<const std::uint32_t*>(item.bias + warp * granule_rows + lane / 4 * 2);
    const std::uint32_t both = item.biased ? stored : 0;
    const PairFactors bias{__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
    const ManyPeers& peers = params.peers;
    if (item.work == Work::down && peers.are_none()) {
      store_products<width>(
          item, [](int) { return 0; }, granule, lane, totals, bias);
    } else if (item.work == Work::down) {
      store_products<width>(
          item, [&](int row) { return peers.of_slot(row); }, granule, lane, totals, bias);
    } else {
      store_h<width>(item, granule, lane, totals, bias, params.unit);
    }
  }
}

// The compiler sets registers apart for the sums of each width, which limits how many one kernel can have.
template <class Tiles, int index = 0>
__device__ __forceinline__ void multiply_item_of(int width, Turns& turns, int slot, int warp, int lane,
                                                 const ManyParams<Tiles>& params) {
  constexpr int this_width = Tiles::widths.width[index];
  if constexpr (index + 1 < Tiles::widths.count) {
    if (width != this_width)
      return multiply_item_of<Tiles, index + 1>(width, turns, slot, warp, lane, params);
  }
  multiply_item<Tiles, this_width>(turns, slot, warp, lane, params);
}

template <class Tiles>
__global__ void __launch_bounds__(Tiles::threads, 1)
    sm90_moe_many(const __grid_constant__ ManyParams<Tiles> params) {
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tiles::stages; ++stage) {
      ptx::mbarrier_init(&barriers.weights_full[stage], Tiles::together ? 2 : 1);
      ptx::mbarrier_init(&barriers.weights_empty[stage], Tiles::granules);
    }
    for (int stage = 0; stage < Tiles::input_stages; ++stage) {
      ptx::mbarrier_init(&barriers.inputs_full[stage], 1);
      ptx::mbarrier_init(&barriers.inputs_empty[stage], Tiles::granules);
    }
    for (int slot = 0; slot < item_slots; ++slot) {
      ptx::mbarrier_init(&barriers.item_full[slot], 1);
      ptx::mbarrier_init(&barriers.item_ready[slot], 1);
      ptx::mbarrier_init(&barriers.item_done[slot], Tiles::granules);
      ptx::mbarrier_init(&barriers.item_empty[slot], 3);
    }
    ptx::mbarrier_init(&barriers.item_wanted, 1);
    ptx::fence_mbarrier_init();
  }
  shared.table.clear(params.experts);
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  __syncthreads();  // the barriers are ready, and no expert has tokens
  const Deal deal(params, shared.table.make(params.tokens, params.experts, params.widths));
  if (warp >= Tiles::granules) {
    ptx::keep_registers<fetch_registers>();
    if (warp == Tiles::granules) deal_items<Tiles>(params, deal, lane);
    if (warp == Tiles::granules + 1 && lane == 0) fetch_weights<Tiles>(params);
    if (warp == Tiles::granules + 2 && lane == 0) fetch_inputs<Tiles>(params);
    if (warp == Tiles::granules + 3 && lane == 0) announce<Tiles>(params, deal);
  } else {
    ptx::take_registers<Tiles::registers>();
    const int blocks = params.products[0].shape.blocks();
    deal.for_shares([&](int tile_index, int part) {
      const MoeManyTile tile = shared.table.tile(tile_index, params.experts, params.widths, lane);
      gather_tile<Tiles::granules>(params.tokens, tile, tile_in(params.places.x, tile, blocks),
                                   params.places.slots + tile.row, part * blocks / deal.shares,
                                   (part + 1) * blocks / deal.shares, shared.gather, warp, lane);
      ptx::named_barrier(1, Tiles::product_threads);  // all of the share is stored
      if (threadIdx.x == 0) tell_of_tile(params.places.x_ready + tile_index);
      __syncwarp();  // exchanges need all lanes at once
    });
    RingStage turn;
    Turns turns;
    while (true) {
      ptx::mbarrier_wait(&barriers.item_full[turn.stage], turn.parity);
      const Item& item = shared.items[turn.stage];
      if (item.work == Work::none) break;
      multiply_item_of<Tiles>(item.width, turns, turn.stage, warp, lane, params);
      __syncwarp();  // all lanes are done with the item
      if (lane == 0) ptx::mbarrier_arrive(&barriers.item_done[turn.stage]);
      turn.next(item_slots);
    }
  }
}

inline MoeManyPlaces places_in(const MoeCudaWorkspace& workspace, int slots, int experts, int hidden_blocks) {
  const std::size_t rows = static_cast<std::size_t>(moe_many_rows(slots, experts));
  MoeManyPlaces places;
  places.slots = reinterpret_cast<std::int32_t*>(workspace.many);
  places.x = workspace.many + moe_many_slot_bytes(slots, experts) + moe_many_sorted_bytes(slots, experts);
  places.h = places.x + rows * static_cast<std::size_t>(hidden_blocks) * moe_row_bytes;
  places.next_item = workspace.many_counters;
  places.x_ready = places.next_item + 1;
  places.h_ready = places.x_ready + moe_many_tiles(slots, experts);
  places.stuck = workspace.stuck;
  return places;
}

inline ManyPeers peers_of(const MoeCudaArgs& args) {
  ManyPeers peers;
  if (args.rows_of_ranks.room == nullptr) return peers;
  const PeerRoom& room = *args.rows_of_ranks.room;
  for (int rank = 0; rank < room.ranks; ++rank) peers.apart[rank] = room.rooms[rank] - room.rooms[room.rank];
  const std::uint64_t slots_a_rank = static_cast<std::uint64_t>(args.rows_of_ranks.slots_a_rank);
  peers.of_slots_a_rank = ((std::uint64_t{1} << 40) + slots_a_rank - 1) / slots_a_rank;
  return peers;
}

// Whoever waits for a tile's inputs waits for items that blocks ahead of it begin with.
template <class Tiles>
WaitingGrid grid_of() {
  return waiting_grid("sm90_moe_many",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = Tiles::threads,
                       .shared_bytes = sizeof(Shared<Tiles>)},
                      sm90_moe_many<Tiles>);
}
template <class Layout>
WaitingGrids grids_of() {
  return {grid_of<FewTokens<Layout>>(), grid_of<SomeTokens<Layout>>(), grid_of<ManyTokens<Layout>>()};
}

template <class Tiles, class Granules>
Status launch_products(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args,
                       cudaStream_t stream) {
  const int processors = processors_of_device();
  const int blocks = args.blocks > 0 && args.blocks < processors ? args.blocks : processors;
  const int slots = args.tokens * args.top_k, experts = weights.gate_up.experts;
  const MoeManyPlaces places = places_in(args.workspace, slots, experts, weights.gate_up.shape.blocks());
  MoeManyTokens tokens{.x = args.x,
                       .expert_ids = args.expert_ids,
                       .x_stride = args.x_stride,
                       .top_k = args.top_k,
                       .slots = slots,
                       .taken = taken_of(args.share, experts),
                       .sorted = {}};
  if (sorts_slots(slots)) {
    tokens.sorted = SortedSlots(args.workspace.many + moe_many_slot_bytes(slots, experts), experts);
    sort_slots_cuda({args.expert_ids, tokens.taken, slots, experts}, tokens.sorted, {}, stream);
  }
  const auto product = [](const Granules& matrix, const Bf16* bias) {
    Product<Tiles> made{.weights = {},
                        .bias = bias,
                        .shape = matrix.shape,
                        .chunks = k_chunks(matrix.shape, Tiles::blocks),
                        .factor = matrix.factor(),
                        .row_items = (matrix.shape.granules() + Tiles::granules - 1) / Tiles::granules};
    for (int count = 1; count <= Tiles::blocks; ++count) {
      if (!made.chunks.has_stage_of(count)) continue;
      const ptx::Boxes stages{.matrix = matrix.data,
                              .block_bytes = granule_block_bytes<typename Tiles::Layout>,
                              .blocks = matrix.shape.blocks(),
                              .rows = matrix.experts * matrix.shape.granules(),
                              .box_blocks = count,
                              .box_rows = Tiles::granules};
      made.weights[count - 1] = ptx::box_map(stages);
    }
    return made;
  };
  constexpr int shared_bytes = static_cast<int>(sizeof(Shared<Tiles>));
  static_assert(Tiles::widths.fit() && Tiles::widths.largest() <= moe_many_widest_tile &&
                Tiles::stages >= 2 && shared_bytes <= 227 * 1024);
  cuda_check(
      cudaFuncSetAttribute(sm90_moe_many<Tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = Tiles::threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true},
                sm90_moe_many<Tiles>,
                ManyParams<Tiles>{.products = {product(weights.gate_up, weights.gate_up_bias),
                                               product(weights.down, weights.down_bias)},
                                  .places = places,
                                  .tokens = tokens,
                                  .experts = experts,
                                  .widths = Tiles::widths,
                                  .out = args.workspace.products,
                                  .unit = weights.unit,
                                  .peers = peers_of(args)});
  return {};
}

}  // namespace nibble::moe_many

namespace nibble {

template <class Granules>
Status moe_many_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args,
                     cudaStream_t stream) {
  using Layout = typename Granules::Layout;
  NIBBLE_RETURN_IF_ERROR(check_moe_shapes(weights, args));
  if (args.workspace.many == nullptr || args.workspace.many_counters == nullptr)
    return invalid_argument("no room for many tokens was given");
  if (weights.gate_up.experts > moe_many_most_experts) {
    return invalid_argument("the kernel for many tokens takes up to " +
                            std::to_string(moe_many_most_experts) + " experts, not " +
                            std::to_string(weights.gate_up.experts));
  }
  if (args.share.turns > 1) return invalid_argument("many tokens are shared out by experts alone");
  if (args.tokens * args.top_k >= 1 << 20)
    return invalid_argument("the kernel for many tokens takes less than 2^20 choices");
  if (args.tokens == 0) return {};
  const int routed = args.share.routed > 0 ? args.share.routed : weights.gate_up.experts;
  const int mean = args.tokens * args.top_k / routed;  // tokens of an expert
  NIBBLE_RETURN_IF_ERROR(
      mean < moe_many_least_of_some
          ? moe_many::launch_products<moe_many::FewTokens<Layout>>(weights, args, stream)
      : mean < moe_many_least_of_many
          ? moe_many::launch_products<moe_many::SomeTokens<Layout>>(weights, args, stream)
          : moe_many::launch_products<moe_many::ManyTokens<Layout>>(weights, args, stream));
  if (args.out != nullptr) add_experts_cuda(args, weights.down.shape.rows, stream);
  return {};
}

}  // namespace nibble
