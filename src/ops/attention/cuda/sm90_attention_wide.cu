// paged_attention for sequences of many rows (prefill) and heads of 256, with the bits of the kernel for few
// (attention_cuda.h has the order of additions).
//
// A query's total and its split are 512 sums, so a warpgroup has room for half of the dimensions of 64
// queries. Two warpgroups share a tile of 64: each scores half of a step's positions and multiplies all of
// the step's weights with half of the dimensions of its values. They meet twice a step, for the largest
// scores and for the weights, which pass through shared memory. A step's values are multiplied beside the
// weighing of the next step's scores. FLOPs: 4 x 256 a query and position, 1,024 cycles a step; operands from
// shared memory take 1,280. Products read bfloat16: what comes as e4m3 comes into a ring of its own, and
// warps that have nothing else to do convert it.
//
// Tiles are dealt from a sequence's end, where they are largest, in rounds of alternating direction.
#include <algorithm>
#include <type_traits>

#include "ops/attention/cuda/attention_conversion.cuh"
#include "ops/attention/cuda/attention_row_sums.cuh"
#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int wide_dims = 256;
constexpr int halves = 2;  // warpgroups that read
constexpr int readers = halves * 128;
constexpr int wide_threads = 128 + readers;
constexpr int tile_queries = 64;
constexpr int step_positions = attention_step_of(wide_dims);
constexpr int own_positions = step_positions / halves, own_dims = wide_dims / halves;
constexpr int own_eights = own_positions / 8;
// Shared memory of eight rows, which core matrices of 16 bytes a row fill: of keys and queries, of weights.
constexpr int eight_rows = 8 * wide_dims * 2, eight_weights = 8 * step_positions * 2;
constexpr int slots = 4, coming_slots = 2;
// Warps of the first warpgroup: one brings keys and values, one queries, two convert.
constexpr int query_warp = 1, first_converter = 2, converters = 2;
enum Meeting { largest_met = 1, weights_met, cleared_met };  // named barriers of all readers

using WideTile = HeadTile<wide_dims>;
using WideRing = KvRing<KvBf16, slots, readers / 32, wide_dims>;
using WideComing = ComingRing<coming_slots, converters, wide_dims>;

struct alignas(128) WideShared {
  std::uint8_t ring[slots * attention_slot_bytes<KvBf16, wide_dims>];
  std::uint8_t queries[tile_queries * wide_dims * 2];
  std::uint8_t weights[2][tile_queries * step_positions * 2];  // of steps in turn
  float largest[halves][tile_queries];                         // scores, of either half of positions
  float sums[halves][tile_queries][4];                         // of weights, by lanes
  std::uint64_t full[slots], empty[slots];
  std::uint64_t queries_full, queries_empty;
  long long before[attention_max_sequences + 1];  // tiles
};
// Behind it, of keys and values that are converted.
struct alignas(128) ComingShared {
  std::uint8_t ring[coming_slots * attention_slot_bytes<KvE4m3, wide_dims>];
  std::uint64_t full[coming_slots], empty[coming_slots];
};
template <class Kv>
inline constexpr bool is_converted = !std::is_same_v<Kv, KvBf16>;
template <class Kv>
inline constexpr std::size_t shared_bytes = sizeof(WideShared) +
                                            (is_converted<Kv> ? sizeof(ComingShared) : 0);

// A warpgroup's reading of one tile.
struct WideReading {
  using Place = WideRing::Place;
  WideShared& shared;
  const WideRing& ring;
  const WideTile& tile;
  int half, lane;
  int first_query;  // of this thread: its row g
  int t;
  Sight sights[2];
  int whole_first, whole_past;  // the steps that all of the warp's queries see
  float exponents;              // a score's

  __device__ __forceinline__ WideReading(WideShared& shared_, const WideRing& ring_, const WideTile& tile_,
                                         int half_, int warp, int lane_)
      : shared(shared_),
        ring(ring_),
        tile(tile_),
        half(half_),
        lane(lane_),
        first_query(warp * 16 + lane_ / 4),
        t(lane_ % 4),
        sights{tile_.sight(first_query), tile_.sight(first_query + 8)} {
    whole_first = (tile.sight(warp * 16 + 15).first + step_positions - 1) / step_positions;
    whole_past = tile.sight(warp * 16).past / step_positions;
    exponents = __fmul_rn(tile.args.scale, log2_e);
  }

  __device__ __forceinline__ void meet(Meeting meeting) const { ptx::named_barrier(meeting, readers); }
  __device__ __forceinline__ void release(const Place& at) const {
    if (lane == 0) ring.release(at);
  }

  // s = q keys, of this warpgroup's positions: under way when it returns.
  __device__ __forceinline__ void multiply_keys(float (&s)[4 * own_eights], const Place& at) const {
    const std::uint8_t* const keys = ring.slot(at) + half * own_eights * eight_rows;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < wide_dims / 16; ++k) {
      ptx::wgmma_bf16(s, ptx::wgmma_operand<eight_rows>(shared.queries + k * 256),
                      ptx::wgmma_operand<eight_rows>(keys + k * 256), k > 0);
    }
    ptx::wgmma_commit();
  }

  // o = weights values, of this warpgroup's dimensions, plus what o held if `add`: under way when it returns.
  __device__ __forceinline__ void multiply_values(float (&o)[own_dims / 2], int step, const Place& at,
                                                  bool add) const {
    const std::uint8_t* const values = ring.slot(at) + half * (own_dims / 8) * kv_group_bytes<KvBf16>;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < step_positions / 16; ++k) {
      ptx::wgmma_bf16(o, ptx::wgmma_operand<eight_weights>(shared.weights[step % 2] + k * 256),
                      ptx::wgmma_operand<kv_group_bytes<KvBf16>>(values + k * 256), add || k > 0);
    }
    ptx::wgmma_commit();
  }

  // What the queries do not see of a step.
  __device__ __forceinline__ void hide(float (&s)[4 * own_eights], int step) const {
    if (step >= whole_first && step < whole_past) return;
    const int at = step * step_positions + half * own_positions + 2 * t;
#pragma unroll
    for (int i = 0; i < 4 * own_eights; ++i) {
      const int position = at + i / 4 * 8 + i % 2, row = i / 2 % 2;
      if (position < sights[row].first || position >= sights[row].past) s[i] = attention_nothing;
    }
  }

  // Weights are zero where the tile sees nothing, but zero times what is no number is none. A thread has the
  // same eight positions of some dimensions, and eight threads 128 bytes in a row.
  __device__ __forceinline__ void clear_unseen(std::uint8_t* values, int step) const {
    const int first = tile.first() - step * step_positions, past = tile.past() - step * step_positions;
    if (first <= 0 && past >= step_positions) return;
    constexpr int eights = step_positions / 8;
    const int thread = static_cast<int>(threadIdx.x) - 128, begin = thread / 8 % eights * 8;
    std::uint32_t seen[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int low = begin + 2 * i, high = low + 1;
      seen[i] =
          (low >= first && low < past ? 0x0000ffffu : 0) | (high >= first && high < past ? 0xffff0000u : 0);
    }
    if ((seen[0] & seen[1] & seen[2] & seen[3]) != 0xffffffffu) {
      for (int dimension = thread / step_positions * 8 + thread % 8; dimension < wide_dims;
           dimension += readers / eights) {
        uint4* const eight = reinterpret_cast<uint4*>(values + 2 * KvBf16::value_at(begin, dimension));
        const uint4 held = *eight;
        *eight = make_uint4(held.x & seen[0], held.y & seen[1], held.z & seen[2], held.w & seen[3]);
      }
    }
    ptx::fence_shared_writes();
    meet(cleared_met);
  }

  // Scores into weights, which it leaves in shared memory with their sums; the scales of what the split has
  // summed up so far.
  __device__ __forceinline__ void weigh(float (&s)[4 * own_eights], int step, RowScalars& split,
                                        float (&scales)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(s[2 * row], s[2 * row + 1]);
#pragma unroll
      for (int i = 1; i < own_eights; ++i)
        largest = fmaxf(largest, fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if (t == 0) shared.largest[half][first_query + 8 * row] = largest;
    }
    meet(largest_met);  // and nobody reads the sums of the step before any more
    std::uint8_t* const weights =
        shared.weights[step % 2] + first_query / 8 * eight_weights + half * own_eights * 128 + lane * 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = first_query + 8 * row;
      const float largest = fmaxf(shared.largest[0][query], shared.largest[1][query]);
      const float m = fmaxf(split.m[row], exponent_of(__fmul_rn(largest, exponents)));
      const float from = finite_exponent(m);
      scales[row] = power_of_two(__fsub_rn(split.m[row], m));
      split.m[row] = m;
      float of_eight[own_eights];
#pragma unroll
      for (int i = 0; i < own_eights; ++i) {
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) pair[e] = ptx::exp2_fast(fmaf(s[4 * i + 2 * row + e], exponents, -from));
        of_eight[i] = __fadd_rn(pair[0], pair[1]);
        *reinterpret_cast<std::uint32_t*>(weights + row * eight_weights + i * 128) =
            ptx::pack_bf16x2(pair[0], pair[1]);
      }
#pragma unroll
      for (int apart = 1; apart < own_eights; apart *= 2) {
#pragma unroll
        for (int i = 0; i < own_eights; i += 2 * apart)
          of_eight[i] = __fadd_rn(of_eight[i], of_eight[i + apart]);
      }
      shared.sums[half][query][t] = of_eight[0];
    }
    ptx::fence_shared_writes();
  }

  // Of the step that was weighed last, when both warpgroups have.
  __device__ __forceinline__ void add_sums(RowScalars& split, const float (&scales)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = first_query + 8 * row;
      const float both = __fadd_rn(shared.sums[0][query][t], shared.sums[1][query][t]);
      split.l[row] = fmaf(split.l[row], scales[row], both);
    }
  }

  __device__ __forceinline__ void run(Place& at, unsigned& tiles) const {
    float s[4 * own_eights], o[own_dims / 2], total[own_dims / 2], scales[2];
    RowScalars split{{attention_nothing, attention_nothing}, {0, 0}}, of_total;
#pragma unroll
    for (int i = 0; i < own_dims / 2; ++i) total[i] = o[i] = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of_total.m[row] = tile.sink_exponent(first_query + 8 * row);
      of_total.l[row] = t == 0 ? tile.sink_weight(first_query + 8 * row) : 0;
    }
    const int first = tile.first_step(), past = tile.past_step();
    ptx::mbarrier_wait(&shared.queries_full, tiles & 1);
    ++tiles;
    ring.wait_full(at);
    multiply_keys(s, at);
    ptx::wgmma_wait_all(s);
    release(at);
    hide(s, first);
    weigh(s, first, split, scales);
    bool add = false;  // whether the values' product goes on from what o holds
#pragma unroll 1
    for (int step = first + 1; step < past; ++step, at = at.plus(2)) {
      ring.wait_full(at.plus(1));
      clear_unseen(ring.slot(at.plus(1)), step - 1);
      ring.wait_full(at.plus(2));
      multiply_keys(s, at.plus(2));
      meet(weights_met);
      multiply_values(o, step - 1, at.plus(1), add);
      add_sums(split, scales);

      ptx::wgmma_wait_but<1>(s);
      release(at.plus(2));
      hide(s, step);
      const RowScalars last = split;
      const bool begins = begins_split(step);
      if (begins) split = {{attention_nothing, attention_nothing}, {0, 0}};
      weigh(s, step, split, scales);
      ptx::wgmma_wait_all(o);
      release(at.plus(1));
      if (begins) {
        take_in_split(total, of_total, o, last);
      } else {
        scale(o, scales);
      }
      add = !begins;
    }
    ring.wait_full(at.plus(1));
    clear_unseen(ring.slot(at.plus(1)), past - 1);
    meet(weights_met);
    multiply_values(o, past - 1, at.plus(1), add);
    add_sums(split, scales);
    ptx::wgmma_wait_all(o);
    release(at.plus(1));
    at = at.plus(2);
    if (lane == 0) ptx::mbarrier_arrive(&shared.queries_empty);
    take_in_split(total, of_total, o, split);
    put_out(total, of_total);
  }

  __device__ __forceinline__ void put_out(const float (&total)[own_dims / 2],
                                          const RowScalars& scalars) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float l = scalars.l[row];
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
      const int query = first_query + 8 * row;
      if (query >= tile.count) continue;
      const float factor = 1.0f / l;
      std::uint8_t* const out = tile.out(query, half * own_dims + 2 * t);
#pragma unroll
      for (int j = 0; j < own_dims / 8; ++j) {
        // Eight columns further on are 128 bytes (token_offset).
        *reinterpret_cast<std::uint32_t*>(out + 128 * j) = ptx::pack_bf16x2(
            __fmul_rn(total[4 * j + 2 * row], factor), __fmul_rn(total[4 * j + 2 * row + 1], factor));
      }
    }
  }
};

// By one warp: brings a tile's queries as an operand.
__device__ __forceinline__ void fill_queries(const WideTile& tile, unsigned tiles, WideShared& shared,
                                             int lane) {
  ptx::mbarrier_wait(&shared.queries_empty, (tiles & 1) ^ 1);
#pragma unroll 4
  for (int query = 0; query < tile_queries; ++query) {
    ptx::copy_to_shared(shared.queries + query / 8 * eight_rows + lane * 128 + query % 8 * 16,
                        tile.queries(query) + lane * 8);
  }
  ptx::await_copies_to_shared();
  ptx::fence_shared_writes();
  __syncwarp();  // all lanes' copies are there
  if (lane == 0) ptx::mbarrier_arrive(&shared.queries_full);
}

template <class Kv>
__global__ void __launch_bounds__(wide_threads, 1)
    sm90_attention_wide(const __grid_constant__ AttentionCudaArgs args) {
  WideShared& shared = *reinterpret_cast<WideShared*>(ptx::dynamic_shared());
  ComingShared& of_coming = *reinterpret_cast<ComingShared*>(&shared + 1);  // if anything is converted
  const WideRing ring{shared.ring, shared.full, shared.empty};
  const WideComing coming{of_coming.ring, of_coming.full, of_coming.empty};
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 1);
    ptx::mbarrier_init(&shared.queries_empty, readers / 32);
    if constexpr (is_converted<Kv>) {
      ring.init(converters);
      coming.init();
    } else {
      ring.init();
    }
  }
  const int group_bits = group_bits_of(args), tile_rows = tile_queries >> group_bits;
  add_up_units<wide_threads>(shared.before, args.sequence_count, [&](int index) -> long long {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0) return 0;
    if (args.rows != AttentionRows::all_as_many && has_few_rows(sequence, group_bits)) return 0;
    return (sequence.row_count + tile_rows - 1) / tile_rows;
  });
  const int units = static_cast<int>(shared.before[args.sequence_count]) * args.cache.kv_heads;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const auto for_each_tile = [&](const auto& run) {
    for (int begin = 0, round = 0; begin < units; begin += blocks, ++round) {
      const int unit = begin + (round % 2 == 0 ? block : blocks - 1 - block);
      if (unit >= units) continue;
      const int of_all = unit / args.cache.kv_heads;
      const int index = sequence_of(shared.before, args.sequence_count, of_all);
      const SequenceCuda sequence = args.sequences[index];
      const int first_row = (static_cast<int>(shared.before[index + 1]) - 1 - of_all) * tile_rows;
      run(WideTile{args, sequence, unit % args.cache.kv_heads, group_bits, first_row,
                   min(tile_rows, sequence.row_count - first_row) << group_bits});
    }
  };
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  typename WideRing::Place at;
  unsigned tiles = 0;
  if (warp < 4) {
    ptx::keep_registers<40>();
    typename WideComing::Place at_coming;
    if (warp == query_warp) {
      for_each_tile([&](const WideTile& tile) { fill_queries(tile, tiles++, shared, lane); });
    } else if (warp >= first_converter) {
      if constexpr (is_converted<Kv>) {
        for_each_tile([&](const WideTile& tile) {
          convert_steps<converters>(coming, at_coming, ring, at, tile.first_step(), tile.past_step(),
                                    warp - first_converter, lane);
        });
      }
    } else {
      for_each_tile([&](const WideTile& tile) {
        if constexpr (is_converted<Kv>) {
          coming.fill(at_coming, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
        } else {
          ring.fill(at, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
        }
      });
    }
  } else {
    ptx::take_registers<232>();
    const int half = warp / 4 - 1;
    for_each_tile(
        [&](const WideTile& tile) { WideReading(shared, ring, tile, half, warp % 4, lane).run(at, tiles); });
  }
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  cuda_check(cudaFuncSetAttribute(sm90_attention_wide<Kv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes<Kv>)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                 .threads = wide_threads,
                 .shared_bytes = shared_bytes<Kv>,
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_wide<Kv>, args);
}

}  // namespace

void launch_attention_wide(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
