// moe_mxfp4 for many tokens, on wgmma; the bits are those of the kernel for few tokens, whose order of
// additions (mxfp4_granules.h) it keeps.
//
//   tiles     slots by expert, and the tokens' activations (moe_many_tiles.cuh)
//   products  gate_up, whose epilogue writes h as such tiles, and down, in one kernel
//   combine   a token's experts (moe_steps.cuh)
//
// A block a multiprocessor. It takes items, a tile of tokens times 192 or 128 rows of a product, from a
// common counter: all of gate_up's, then all of down's, which wait for their tile's h. One warp fetches
// weights, a thread activations, by bulk copies into rings, and run ahead from item to item. Each of the
// other warps has a granule: it decodes its codes into the registers that wgmma reads its first operand from.
// So there is no barrier between warps but the rings'.
//
// Why these tiles, for a k64 block of an item, in cycles of a multiprocessor at 1.77 GHz:
//
//   rows x tokens   weights   their share of what   products, 4,096   instructions of each of four
//                             DRAM gives, 19.9      FLOP a cycle      schedulers, 80 .. 95 a warp
//   192 x 16        6.5 KB    328                   96                240
//   192 x 64        6.5 KB    328                   384               285
//   128 x 160       4.4 KB    218                   640               190
//
// Few tokens an expert are bound by bytes and by decoding, which does not depend on the width: the more rows
// at once the better, and tiles as narrow as the tokens are few. Many are bound by the products: a tile as
// wide as registers allow, which hold a chunk's sums and those of the chunks before it (80 each for 160
// tokens). Bytes from the second-level cache come with the width: 24 KB for 128 x 160, 38 a cycle at the full
// rate of the products, near what it can give.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_many_tiles.cuh"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int fetch_threads = 128;  // a warpgroup's, of which three warps have work
constexpr int fetch_registers = 24;
constexpr int most_item_granules = 12;
constexpr int max_stages = 8;
constexpr int max_tile = 160;
constexpr int item_slots = 2;
constexpr int ring_limit = 223 * 1024;  // of a block's 227 KB; items and barriers take the rest

constexpr int min_of(int a, int b) { return a < b ? a : b; }

// What a launch has code for: the widths of tiles, the granules of an item (a warp each), the k64 blocks of a
// stage, and how activations come: in the stages of the weights, or a block a stage in a ring of their own.
template <int granules_, int blocks_, int input_stages_, int... widths_>
struct Tiling {
  static constexpr int granules = granules_, blocks = blocks_;
  static constexpr int product_threads = granules * 32, threads = product_threads + fetch_threads;
  // Of a thread that multiplies: what a launch of so many threads leaves when the others keep theirs.
  static constexpr int registers =
      (65536 / threads / 8 * 8 * threads - fetch_threads * fetch_registers) / product_threads / 8 * 8;
  static constexpr MoeManyWidths widths{sizeof...(widths_), {widths_...}};
  static constexpr int input_stages = input_stages_;  // 0: activations lie in the stages of the weights
  static constexpr bool together = input_stages == 0;
  static constexpr int granule_bytes = blocks * granule_block_bytes;    // of a stage's granule
  static constexpr int weight_bytes = granules * granule_bytes;         // of a stage
  static constexpr int block_bytes = widths.largest() * moe_row_bytes;  // of the widest tile's k64 block
  static constexpr int stage_bytes = weight_bytes + (together ? blocks * block_bytes : 0);
  static constexpr int stages = min_of(max_stages, (ring_limit - input_stages * block_bytes) / stage_bytes);
};
using FewTokens = Tiling<12, 5, 0, 8, 16, 24, 32, 40>;
using SomeTokens = Tiling<12, 5, 10, 64, 80>;
using ManyTokens = Tiling<8, 5, 7, 128, 160>;

// Calls visit(block, count) for the k64 blocks of each stage in turn; no stage crosses the border of a chunk.
template <class Tiles, class Visit>
__device__ __forceinline__ void for_stages(const GranuleShape& shape, const Visit& visit) {
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
  float scale, swiglu_limit;
  const std::uint8_t* inputs;  // the tile's
  std::uint8_t* h;             // the tile's
  std::uint32_t* h_ready;      // the tile's
  float* out;                  // [slots, out_columns]
  std::int32_t out_columns;
  std::int32_t h_items;  // that make up the tile of h
  alignas(16) Bf16 bias[most_item_granules * granule_rows];
  alignas(16) std::int32_t slots[max_tile];
};

struct Product {
  const std::uint8_t* weights;
  const Bf16* bias;  // [experts, rows]
  std::uint8_t* inputs;
  GranuleShape shape;
  float scale;    // 2^exponent_shift
  int row_items;  // items over its rows
};

struct ManyParams {
  Product products[2];  // gate_up, down
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
__device__ __forceinline__ void fetch_weights(const ManyParams& params, int lane) {
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
    const Product& product = params.products[second];
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
      const GranuleShape& down = params.products[1].shape;
      item.width = tile.width;
      item.second = second;
      item.blocks = product.shape.blocks();
      item.granule = granule;
      item.granules = product.shape.granules();
      item.h_columns = down.cols;
      item.scale = product.scale;
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
      const std::uint32_t bytes = static_cast<std::uint32_t>(count) * granule_block_bytes;
      std::uint64_t* const come = &shared.barriers.weights_full[weights.stage];
      ptx::mbarrier_wait(&shared.barriers.weights_empty[weights.stage], weights.parity ^ 1);
      if (lane == 0) ptx::mbarrier_arrive_expecting(come, static_cast<std::uint32_t>(granules) * bytes);
      __syncwarp();  // the bytes are announced before they can come
      if (lane < granules) {
        ptx::bulk_copy_to_shared(shared.weights[weights.stage] + lane * Tiles::granule_bytes,
                                 from + block * granule_block_bytes, bytes, come);
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

// A lane's codes of a k64 block and the scales of its two rows, low byte first.
struct Codes {
  uint4 words;
  std::uint32_t scales;
};

// The operand registers of two of a block's steps.
__device__ __forceinline__ void decode_steps(std::uint32_t (&a)[2][4], std::uint32_t first,
                                             std::uint32_t second, std::uint32_t even, std::uint32_t odd) {
  const PlacedPairs placed = place_pairs(first, second, ptx::choose_bits(first, second, granule_merge_mask));
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = ptx::multiply_bf16x2(placed.pair[i], i % 2 == 0 ? even : odd);
}

// Stores h of a granule: the gate and the up projection of an element meet in a lane, elements that make up a
// word in lanes 4 apart.
template <int width>
__device__ __forceinline__ void store_h(const Item& item, int granule, int lane,
                                        const float (&totals)[width / 2], float even_bias, float odd_bias) {
  const int g = lane / 4, column = lane % 4 * 2 + g % 2;
  const auto place = [&](int element) {
    return item.h + element / granule_k * (width * moe_row_bytes) +
           moe_tile_offset(width, column, element % granule_k);
  };
  std::uint8_t* const to = place(granule * (granule_rows / 2) + g / 2 * 2);
  const float scale = item.scale, limit = item.swiglu_limit;
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
    float h[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      h[c] = swiglu_on_device(__fmul_rn(totals[4 * j + c], scale) + even_bias,
                              __fmul_rn(totals[4 * j + 2 + c], scale) + odd_bias, limit);
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

template <int width>
__device__ __forceinline__ void store_products(const Item& item, int granule, int lane,
                                               const float (&totals)[width / 2], float even_bias,
                                               float odd_bias) {
  const float scale = item.scale;
  float* const out = item.out + granule * granule_rows + lane / 4 * 2;
  const std::size_t columns = static_cast<std::size_t>(item.out_columns);
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int slot = item.slots[8 * j + lane % 4 * 2 + c];
      if (slot < 0) continue;
      *reinterpret_cast<float2*>(out + static_cast<std::size_t>(slot) * columns) =
          make_float2(__fmul_rn(totals[4 * j + c], scale) + even_bias,
                      __fmul_rn(totals[4 * j + 2 + c], scale) + odd_bias);
    }
  }
}

// A warp's granule of an item. A block's steps are queued in twos, and the codes of two are decoded while the
// two before are multiplied.
template <class Tiles, int width>
__device__ __forceinline__ void multiply_item(Turns& turns, int slot, int warp, int lane) {
  constexpr unsigned step_bytes = width * 32;
  Shared<Tiles>& shared = shared_of_block<Tiles>();
  Barriers<Tiles>& barriers = shared.barriers;
  const Item& item = shared.items[slot];
  const int blocks = item.blocks;
  const int codes_at = warp * Tiles::granule_bytes + lane * 16;
  const int scales_at = warp * Tiles::granule_bytes + granule_code_bytes + lane / 4 * 4 + lane % 4 / 2 * 2;
  float sums[width / 2], totals[width / 2];
  // A chunk without blocks adds a zero, and only to a minus zero does that matter.
  const float nothing = blocks < granule_k_chunks ? 0.0f : -0.0f;
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
  int end = 0;
#pragma unroll 1
  for (int chunk = 1; chunk <= granule_k_chunks; ++chunk) {
    int block = end;
    end = chunk * blocks / granule_k_chunks;
    if (block == end) continue;
    bool add = false;
#pragma unroll 1
    do {
      const int stage = turns.weights.stage, count = min(end - block, Tiles::blocks);
      const std::uint8_t* const codes = shared.weights[stage] + codes_at;
      const std::uint8_t* const scales = shared.weights[stage] + scales_at;
      const auto load = [&](int index) {
        return Codes{*reinterpret_cast<const uint4*>(codes + index * granule_block_bytes),
                     *reinterpret_cast<const std::uint16_t*>(scales + index * granule_block_bytes)};
      };
      ptx::mbarrier_wait(&barriers.weights_full[stage], turns.weights.parity);
      turns.weights.next(Tiles::stages);
      Codes next = load(0);
      if (!add && block > 0) add_chunk();
#pragma unroll
      for (int index = 0; index < Tiles::blocks; ++index) {
        std::uint64_t b;
        if constexpr (Tiles::together) {
          b = ptx::wgmma_operand_at(weights_ring,
                                    static_cast<unsigned>(stage * Tiles::stage_bytes + Tiles::weight_bytes) +
                                        static_cast<unsigned>(index) * 4 * step_bytes);
        } else {
          ptx::mbarrier_wait(&barriers.inputs_full[turns.inputs.stage], turns.inputs.parity);
          b = ptx::wgmma_operand_at(inputs_ring,
                                    static_cast<unsigned>(turns.inputs.stage * Tiles::block_bytes));
        }
        const std::uint32_t even = granule_multiplier(static_cast<std::uint8_t>(next.scales)),
                            odd = granule_multiplier(static_cast<std::uint8_t>(next.scales >> 8));
        ptx::wgmma_wait_but<1>();
        decode_steps(a[0], next.words.x, next.words.y, even, odd);
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
        decode_steps(a[1], next.words.z, next.words.w, even, odd);
        const bool last = index + 1 == Tiles::blocks || index + 1 == count;
        if (!last) next = load(index + 1);
        ptx::wgmma_fence();
        ptx::wgmma_bf16(sums, a[1][0], ptx::wgmma_operand_at(b, 2 * step_bytes), true);
        ptx::wgmma_bf16(sums, a[1][1], ptx::wgmma_operand_at(b, 3 * step_bytes), true);
        ptx::wgmma_commit();
        if (last) break;
      }
      left_stage = stage;
      block += count;
    } while (block < end);
  }
  add_chunk();
  leave(&barriers.weights_empty[left_stage]);
  if constexpr (!Tiles::together) leave(&barriers.inputs_empty[left_inputs]);

  const int granule = item.granule + warp;
  if (granule < item.granules) {
    const std::uint32_t bias =
        *reinterpret_cast<const std::uint32_t*>(item.bias + warp * granule_rows + lane / 4 * 2);
    const float even_bias = __uint_as_float(bias << 16), odd_bias = __uint_as_float(bias & 0xffff0000u);
    if (item.second) {
      store_products<width>(item, granule, lane, totals, even_bias, odd_bias);
    } else {
      store_h<width>(item, granule, lane, totals, even_bias, odd_bias);
    }
  }
  if (!item.second) leave(&barriers.h_stored[slot]);
}

// The compiler sets registers apart for the sums of each width, which limits how many one kernel can have.
template <class Tiles, int index = 0>
__device__ __forceinline__ void multiply_item_of(int width, Turns& turns, int slot, int warp, int lane) {
  constexpr int this_width = Tiles::widths.width[index];
  if constexpr (index + 1 < Tiles::widths.count) {
    if (width != this_width) return multiply_item_of<Tiles, index + 1>(width, turns, slot, warp, lane);
  }
  multiply_item<Tiles, this_width>(turns, slot, warp, lane);
}

template <class Tiles>
__global__ void __launch_bounds__(Tiles::threads, 1)
    sm90_mxfp4_moe_many(const __grid_constant__ ManyParams params) {
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
      ptx::mbarrier_init(&barriers.item_empty[slot], Tiles::granules + 2);
      ptx::mbarrier_init(&barriers.h_stored[slot], Tiles::granules);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  __syncthreads();  // the barriers are ready
  if (warp >= Tiles::granules) {
    ptx::keep_registers<fetch_registers>();
    if (warp == Tiles::granules) fetch_weights<Tiles>(params, lane);
    if (warp == Tiles::granules + 1 && lane == 0) fetch_inputs<Tiles>();
    if (warp == Tiles::granules + 2 && lane == 0) announce_h<Tiles>();
  } else {
    ptx::take_registers<Tiles::registers>();
    Turn turn;
    Turns turns;
    while (true) {
      ptx::mbarrier_wait(&barriers.item_full[turn.stage], turn.parity);
      const int width = shared.items[turn.stage].width;
      if (width == 0) break;
      multiply_item_of<Tiles>(width, turns, turn.stage, warp, lane);
      __syncwarp();  // all lanes are done with the item
      if (lane == 0) ptx::mbarrier_arrive(&barriers.item_empty[turn.stage]);
      turn.next(item_slots);
    }
  }
}

template <class Tiles>
Status launch_products(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int blocks = args.blocks > 0 && args.blocks < processors ? args.blocks : processors;
  const MoeManyPlaces places = launch_moe_many_tiles(args, weights.gate_up.experts,
                                                     weights.gate_up.shape.blocks(), Tiles::widths, stream);
  const auto product = [](const Mxfp4Granules& matrix, const Bf16* bias, std::uint8_t* inputs) {
    return Product{.weights = matrix.data,
                   .bias = bias,
                   .inputs = inputs,
                   .shape = matrix.shape,
                   .scale = __builtin_ldexpf(1.0f, matrix.exponent_shift),
                   .row_items = (matrix.shape.granules() + Tiles::granules - 1) / Tiles::granules};
  };
  constexpr int shared_bytes = static_cast<int>(sizeof(Shared<Tiles>));
  static_assert(Tiles::widths.fit() && Tiles::stages >= 2 && shared_bytes <= 227 * 1024);
  cuda_check(cudaFuncSetAttribute(sm90_mxfp4_moe_many<Tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = Tiles::threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true},
                sm90_mxfp4_moe_many<Tiles>,
                ManyParams{.products = {product(weights.gate_up, weights.gate_up_bias, places.x),
                                        product(weights.down, weights.down_bias, places.h)},
                           .places = places,
                           .out = args.workspace.products,
                           .swiglu_limit = weights.swiglu_limit});
  return {};
}

}  // namespace

Status moe_mxfp4_many_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_moe_shapes(weights, args));
  if (args.workspace.many == nullptr) return invalid_argument("no room for many tokens was given");
  if (args.tokens == 0) return {};
  const int mean = args.tokens * args.top_k / weights.gate_up.experts;  // tokens of an expert
  NIBBLE_RETURN_IF_ERROR(mean < 28    ? launch_products<FewTokens>(weights, args, stream)
                         : mean < 100 ? launch_products<SomeTokens>(weights, args, stream)
                                      : launch_products<ManyTokens>(weights, args, stream));
  if (args.out != nullptr) launch_moe_combine(args, weights.down.shape.rows, stream);
  return {};
}

}  // namespace nibble
