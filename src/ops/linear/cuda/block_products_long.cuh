// Products with one matrix in blocks (block_matrices.h) for a row or two of activations and any K. A K of one
// pass is block_products_short.cuh's, more rows are block_products_few.cuh's: there a unit's pairs of rows
// keep those who add too long.
//
// K goes in passes of 16 blocks of 128 columns. In each of them one of 16 warps has one block of every
// granule of the grid block's, at most eight, whose totals wait in shared memory from pass to pass. So what a
// warp does for a unit, a granule in a pass, is always the same: wait, multiply, leave what it found, ask for
// the next weights.
//
// What decides the time is how few instructions that is, and that no warp waits for another: a warp of its
// own adds, and the others run ahead of it by as many units as the ring has stages. Where all wait for all at
// each unit, loads, decoding and the tensor core's chains of every warp come at the same time. The
// multiprocessor with the most granules ends last.
//
// The ring is filled before the kernels ahead have ended. It has a stage a unit, as many as leave room for a
// block of the launch before or behind it: 128 KB of FP8. A warp's
// activations of the next pass come to shared memory while it multiplies those of this one.
#pragma once

#include <algorithm>

#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_products_few.cuh"
#include "ops/ptx/load.cuh"

namespace nibble::block_products {

inline constexpr int long_warps = 16;    // that multiply
inline constexpr int long_rows = 2;      // of activations, at most: a pair, of which a lane has both
inline constexpr int long_granules = 8;  // whose totals wait
inline constexpr int long_pieces = 16;   // of a row, in 128 columns
inline constexpr int long_least_stages = 3, long_most_stages = 8;
inline constexpr int long_threads = 32 * (long_warps + 1);

// Where a block's things lie in its shared memory, in bytes.
template <class Codes>
struct LongPlan {
  int rows = 0, stages = 0;

  static constexpr int stage_bytes = 2 * Codes::block_bytes;  // of a warp
  static constexpr int sums_bytes = 32 * 4;                   // of a warp's block
  static constexpr int unit_sums_bytes = long_warps * sums_bytes;
  static constexpr int unit_barriers_bytes = (long_warps + 2) * 8;
  static constexpr int row_bytes = (long_pieces + 1) * 16;  // so that a piece's rows meet in no bank

  constexpr LongPlan() = default;
  constexpr LongPlan(int rows_, int room) : rows(rows_) {
    stages = std::clamp((room - fixed_bytes()) / unit_bytes(), long_least_stages, long_most_stages);
  }
  constexpr int fixed_bytes() const { return x_bytes() * long_warps + totals_bytes() + 16; }
  constexpr int unit_bytes() const {
    return long_warps * stage_bytes + unit_sums_bytes + unit_barriers_bytes;
  }
  constexpr int bytes() const { return fixed_bytes() + stages * unit_bytes(); }

  NIBBLE_HOST_DEVICE constexpr int x_bytes() const { return rows * row_bytes; }  // of a warp
  static constexpr int totals_bytes() { return long_granules * sums_bytes; }
  // In order: stages of all warps, what the warps found in each unit, activations, totals, 16 bytes that
  // nobody reads, barriers.
  NIBBLE_HOST_DEVICE static constexpr int ring(int warp) { return warp * stage_bytes; }
  NIBBLE_HOST_DEVICE constexpr int sums() const { return stages * ring(long_warps); }
  NIBBLE_HOST_DEVICE constexpr int x(int warp) const {
    return sums() + stages * unit_sums_bytes + warp * x_bytes();
  }
  NIBBLE_HOST_DEVICE constexpr int totals() const { return x(long_warps); }
  NIBBLE_HOST_DEVICE constexpr int nobodys() const { return totals() + totals_bytes(); }
  NIBBLE_HOST_DEVICE constexpr int barriers() const { return nobodys() + 16; }
};

template <class Codes, class Store>
struct LongParams {
  FewParams<Codes, Store> product;
  LongPlan<Codes> plan;
};

// The order of a grid block's units: at most eight granules, for each pass of K, one after the other.
struct LongUnits {
  int begin, past;  // granules
  int passes;

  __device__ __forceinline__ int granules_from(int first) const { return min(long_granules, past - first); }
};

// A warp's blocks of 128 columns, an arrival without bytes where it has none, in the order of units.
template <class Codes>
struct LongFeed {
  const std::uint8_t* from;
  std::size_t granule_bytes;
  LongUnits units;
  int warp, blocks;
  int first, granules, granule = 0;  // of those whose totals wait together; none when all has been asked for
  std::size_t back;                  // from past them to the first of them, a pass on
  int halves_left;                   // of K, from the warp's block on
  std::uint32_t bytes;               // of that block
  std::uint64_t copied_once = ptx::copied_once();

  __device__ __forceinline__ LongFeed(const BlockMatrices<Codes>& weights, const LongUnits& of, int of_warp)
      : from(weights.data + static_cast<std::size_t>(of.begin) * weights.shape.granule_bytes() +
             static_cast<std::size_t>(of_warp) * LongPlan<Codes>::stage_bytes),
        granule_bytes(weights.shape.granule_bytes()),
        units(of),
        warp(of_warp),
        blocks(weights.shape.blocks()) {
    begin_granules(of.begin);
  }
  __device__ __forceinline__ void begin_granules(int at) {
    first = at;
    granules = units.granules_from(at);
    back = granules * granule_bytes - long_warps * LongPlan<Codes>::stage_bytes;
    begin_pass(blocks - 2 * warp);
  }
  __device__ __forceinline__ void begin_pass(int halves) {
    halves_left = halves;
    granule = 0;
    bytes = static_cast<std::uint32_t>(granules > 0 ? min(2, max(0, halves)) * Codes::block_bytes : 0);
  }
  // By one lane.
  __device__ __forceinline__ void fetch(std::uint8_t* to, std::uint64_t* full) const {
    if (bytes > 0) {
      ptx::mbarrier_arrive_expecting(full, bytes);
      ptx::bulk_copy_once_to_shared(to, from, bytes, full, copied_once);
    } else if (granules > 0) {
      ptx::mbarrier_arrive(full);
    }
  }
  __device__ __forceinline__ void next() {
    from += granule_bytes;
    if (++granule < granules) return;
    if (halves_left > 2 * (long_warps - warp)) {  // the first granule in the next pass
      from -= back;
      begin_pass(halves_left - 2 * long_warps);
    } else {  // the next granules
      from -= (units.passes - 1) * (long_warps * LongPlan<Codes>::stage_bytes);
      begin_granules(first + granules);
    }
  }
};

// A warp's activations of a pass: copied to shared memory in pieces of 16 bytes, and a lane's of them.
template <class Codes>
struct LongInputs {
  static constexpr int row_bytes = LongPlan<Codes>::row_bytes;
  static constexpr int rows_at_once = 32 / long_pieces;
  const std::uint8_t* x;
  // The first piece that the lane copies: where it lies in the first pass, and where it goes; as many rows as
  // there are from its row on, halves of 128 columns of K from its own on. Where the lane reads.
  int from, to, rows_left, halves, mine;
  int from_row, from_pass;  // bytes from rows or from a pass to the next

  __device__ __forceinline__ LongInputs(const Inputs& of, const LongPlan<Codes>& plan, int blocks, int warp)
      : x(of.data), from_row(rows_at_once * of.row), from_pass(2 * long_warps * of.block) {
    const int lane = static_cast<int>(threadIdx.x % 32), piece = lane % long_pieces, row = lane / long_pieces;
    const int block = 2 * warp + piece / 8, last = plan.rows - 1;
    const int read = column_order<Codes> == ColumnOrder::quarters
                         ? min(lane / 4, last) * row_bytes + lane % 4 * 32
                         : min(lane % 8, last) * row_bytes + lane / 8 * 16;  // past the last row the last
    // By way of a shuffle: the compiler would make them anew in each pass.
    const auto held = [&](int value) { return __shfl_sync(0xffffffffu, value, lane); };
    from = held(block * of.block + piece % 8 * of.piece + row * of.row);
    to = held(plan.x(warp) + row * row_bytes + piece * 16);
    rows_left = held(plan.rows - row);
    halves = held(blocks - block);
    mine = held(plan.x(warp) + read);
  }
  __device__ __forceinline__ void copy(int pass) const {
    if (halves <= 2 * long_warps * pass) return;
    const std::uint8_t* piece = x + (from + pass * from_pass);
    std::uint8_t* at = ptx::dynamic_shared() + to;
#pragma unroll 1
    for (int left = rows_left; left > 0; left -= rows_at_once) {
      ptx::copy_to_shared(at, piece);
      piece += from_row;
      at += rows_at_once * row_bytes;
    }
  }
  __device__ __forceinline__ void load(LaneInputs& to_half, int half) const {
    const std::uint8_t* const at = ptx::dynamic_shared() + mine + half * 128;
    if constexpr (column_order<Codes> == ColumnOrder::quarters) {
      to_half.low = *reinterpret_cast<const uint4*>(at);
      to_half.high = *reinterpret_cast<const uint4*>(at + 16);
    } else {
      ptx::load_matrices(to_half.low.x, to_half.low.y, to_half.low.z, to_half.low.w, at);
      ptx::load_matrices(to_half.high.x, to_half.high.y, to_half.high.z, to_half.high.w, at + 64);
    }
  }
};

struct LongBarriers {
  std::uint64_t* full;  // [stages, warps], of them the warp's: its weights are there
  struct Sums {
    std::uint64_t found, added;  // a unit's are there; they have been read
  } * sums;                      // [stages]
};

// What a warp that multiplies does.
template <class Codes>
__device__ __forceinline__ void multiply_units(const BlockMatrices<Codes>& weights,
                                               const LongPlan<Codes>& plan, const LongBarriers& barriers,
                                               LongFeed<Codes>& feed, const LongInputs<Codes>& inputs) {
  std::uint8_t* const shared = ptx::dynamic_shared();
  // What is held the compiler would make anew for each unit.
  const int warp = feed.warp, lane = ptx::held(static_cast<int>(threadIdx.x % 32));
  const LongUnits units = feed.units;
  const int blocks = weights.shape.blocks(), stages = plan.stages;
  std::uint8_t* const ring = shared + plan.ring(warp);
  // A lane's four sums of both rows, which the first of each four lanes have.
  std::uint8_t* const sums_at = shared + plan.sums() + warp * LongPlan<Codes>::sums_bytes + lane / 4 * 16;
  const bool leaves = ptx::held(lane % 4) == 0;
  inputs.copy(0);
  RingStage place;
#pragma unroll 1
  for (int first = units.begin; first < units.past; first += long_granules) {
    const int granules = ptx::held(units.granules_from(first));
    const bool last = first + granules == units.past;
#pragma unroll 1
    for (int pass = 0; pass < units.passes; ++pass) {
      const int halves = ptx::held(blocks - 2 * (pass * long_warps + warp));
      LaneInputs held[2][1];
      ptx::await_copies_to_shared();
      __syncwarp();  // all lanes' copies are there
      inputs.load(held[0][0], 0);
      inputs.load(held[1][0], 1);
      __syncwarp();  // all have read them
      const int next = pass + 1 < units.passes ? pass + 1 : 0;
      if (next > 0 || !last) inputs.copy(next);
#pragma unroll 1
      for (int granule = 0; granule < granules; ++granule) {
        const std::uint8_t* const at = ring + place.stage * LongPlan<Codes>::ring(long_warps);
        ptx::mbarrier_wait(barriers.full + place.stage * long_warps, place.parity);
        float sums[1][4] = {};
        if (halves >= 2) {
          Share<Codes> first_half, second_half;
          first_half.load(at, lane);
          second_half.load(at + Codes::block_bytes, lane);
          multiply_block(sums, first_half, held[0]);
          multiply_block(sums, second_half, held[1]);
        } else if (halves == 1) {
          Share<Codes> half;
          half.load(at, lane);
          multiply_block(sums, half, held[0]);
        }
        ptx::mbarrier_wait(&barriers.sums[place.stage].added, place.parity ^ 1);
        if (leaves)
          *reinterpret_cast<float4*>(sums_at + place.stage * LongPlan<Codes>::unit_sums_bytes) =
              make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
        __syncwarp();  // all lanes have read the stage and left their sums
        if (ptx::elected_lane()) {
          ptx::mbarrier_arrive(&barriers.sums[place.stage].found);
          feed.fetch(ring + place.stage * LongPlan<Codes>::ring(long_warps),
                     barriers.full + place.stage * long_warps);
        }
        feed.next();
        place.next(stages);
      }
    }
  }
}

// Brings factors and scales of rows near of the granules whose totals wait together, from `first` on: each is
// asked for only a unit ahead. By a warp.
template <class Codes>
__device__ __forceinline__ void touch_factors(const BlockMatrices<Codes>& weights, const LongUnits& units,
                                              int first, std::uint8_t* nobodys) {
  const int lane = static_cast<int>(threadIdx.x % 32), granules = units.granules_from(first);
  const auto touch = [&](const void* from, int bytes) {
#pragma unroll 1
    for (int at = lane * 32; at < bytes; at += 32 * 32) {
      ptx::touch_sector(reinterpret_cast<std::uint32_t*>(nobodys),
                        static_cast<const std::uint8_t*>(from) + at);
    }
  };
  if (granules <= 0) return;
  if constexpr (Codes::scaled) {
    const int of_granule = weights.shape.scale_blocks() * static_cast<int>(sizeof(BlockFactors));
    touch(
        reinterpret_cast<const std::uint8_t*>(weights.factors) + static_cast<std::size_t>(first) * of_granule,
        granules * of_granule);
  }
  if (std::is_same_v<Codes, E4m3Codes> && weights.row_scales != nullptr)
    touch(weights.row_scales + first * block_granule_rows, granules * block_granule_rows * 4);
}

// What the warp that adds does: lane 4i + of has sum `of` of the lanes of a row of the tensor core.
template <class Codes, class Store>
__device__ __forceinline__ void add_units(const FewParams<Codes, Store>& product, const LongPlan<Codes>& plan,
                                          const LongBarriers& barriers, const LongUnits& units) {
  std::uint8_t* const shared = ptx::dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x % 32), odd = lane / 2 % 2;
  const int scale_blocks = product.weights.shape.scale_blocks(), stages = plan.stages;
  // Lane 2i + odd has a factor of block i of the unit's, asked for a unit ahead.
  const auto factor_of = [&](int granule, int pass) {
    if (!Codes::scaled || pass * long_warps + lane / 2 >= scale_blocks) return 1.0f;
    const std::size_t at = static_cast<std::size_t>(granule) * scale_blocks + pass * long_warps;
    return reinterpret_cast<const float*>(product.weights.factors + at)[lane];
  };
  float ahead = factor_of(units.begin, 0);
  RingStage place;
#pragma unroll 1
  for (int first = units.begin; first < units.past; first += long_granules) {
    const int granules = units.granules_from(first);
    touch_factors(product.weights, units, first + granules, shared + plan.nobodys());
#pragma unroll 1
    for (int pass = 0; pass < units.passes; ++pass) {
      const int count = min(long_warps, scale_blocks - pass * long_warps);
      const bool last = pass + 1 == units.passes;
#pragma unroll 1
      for (int granule = 0; granule < granules; ++granule) {
        const float factor = ahead;
        if (granule + 1 < granules) {
          ahead = factor_of(first + granule + 1, pass);
        } else if (!last) {
          ahead = factor_of(first, pass + 1);
        } else if (first + granules < units.past) {
          ahead = factor_of(first + granules, 0);
        }
        ptx::mbarrier_wait(&barriers.sums[place.stage].found, place.parity);
        const float* const found =
            reinterpret_cast<const float*>(shared + plan.sums() +
                                           place.stage * LongPlan<Codes>::unit_sums_bytes) +
            lane;
        float& kept = reinterpret_cast<float*>(shared + plan.totals())[granule * 32 + lane];
        const int row = lane % 2, even_row = (first + granule) * block_granule_rows + lane / 4 * 2;
        RowScales scales;
        if (last) scales = row_scales_of(product.weights, 0, even_row);
        float total = pass == 0 ? 0 : kept;
        const auto add = [&](int block) {
          return add_block<Codes>(total, found[block * 32],
                                  __shfl_sync(0xffffffffu, factor, 2 * block + odd));
        };
        if (count == long_warps) {
#pragma unroll
          for (int block = 0; block < long_warps; ++block) total = add(block);
        } else {
#pragma unroll
          for (int block = 0; block < long_warps; ++block) {
            const float with = add(block);  // of no block: what was there
            total = block < count ? with : total;
          }
        }
        kept = total;
        if (last) {
          const float value = __fmul_rn(total, odd ? scales.odd : scales.even),
                      other = __shfl_xor_sync(0xffffffffu, value, 2);
          if (!odd && row < product.rows) product.store.put(row, even_row, product.store.value(value, other));
        }
        __syncwarp();  // all lanes have read the sums
        if (ptx::elected_lane()) ptx::mbarrier_arrive(&barriers.sums[place.stage].added);
        place.next(stages);
      }
    }
  }
}

template <class Codes, class Store>
__global__ void __launch_bounds__(long_threads, 2)
    multiply_long(const __grid_constant__ LongParams<Codes, Store> params) {
  const FewParams<Codes, Store>& product = params.product;
  const LongPlan<Codes>& plan = params.plan;
  std::uint8_t* const shared = ptx::dynamic_shared();
  const int warp = ptx::warp_of_block(), stages = plan.stages;
  const auto border = [&](unsigned block) {
    return static_cast<int>(static_cast<unsigned>(product.weights.shape.granules()) * block / gridDim.x);
  };
  const LongUnits units{border(blockIdx.x), border(blockIdx.x + 1),
                        (product.weights.shape.scale_blocks() + long_warps - 1) / long_warps};
  auto* const sums = reinterpret_cast<LongBarriers::Sums*>(shared + plan.barriers());
  const LongBarriers barriers{reinterpret_cast<std::uint64_t*>(sums + stages) + warp % long_warps, sums};
  const bool multiplies = warp < long_warps;
  if (threadIdx.x % 32 == 0) {
    if (multiplies) {
      for (int i = 0; i < stages; ++i) ptx::mbarrier_init(barriers.full + i * long_warps, 1);
    } else {
      for (int i = 0; i < stages; ++i) {
        ptx::mbarrier_init(&sums[i].found, long_warps);
        ptx::mbarrier_init(&sums[i].added, 1);
      }
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  if (!product.lets_beside) ptx::grid_launch_dependents();
  const auto begin = [&] {
    ptx::named_barrier(1, long_threads);  // mbarriers are there
    ptx::grid_dependency_wait();
    if (product.lets_beside) ptx::grid_launch_dependents();
  };
  if (multiplies) {
    LongFeed<Codes> feed(product.weights, units, warp);
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      if (ptx::elected_lane())
        feed.fetch(shared + plan.ring(stage * long_warps + warp), barriers.full + stage * long_warps);
      feed.next();
    }
    const LongInputs<Codes> inputs(product.x, plan, product.weights.shape.blocks(), warp);
    begin();
    multiply_units(product.weights, plan, barriers, feed, inputs);
  } else {
    touch_factors(product.weights, units, units.begin, shared + plan.nobodys());
    begin();
    add_units(product, plan, barriers, units);
  }
}

template <class Codes, class Store>
void launch_long(const FewParams<Codes, Store>& product, cudaStream_t stream) {
  const int processors = processors_of_device(), granules = product.weights.shape.granules();
  const SharedShare share = share_of(product.rows);
  const LongPlan<Codes> plan(product.rows,
                             share.bytes - 2 * shared_of_block - shared_beside - shared_of_norm);
  const auto kernel = multiply_long<Codes, Store>;
  const int bytes = std::max(plan.bytes(), shared_of_lone_block);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(granules, processors))),
                 .threads = long_threads,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share},
                kernel, LongParams<Codes, Store>{product, plan});
}

}  // namespace nibble::block_products
