// paged_attention for sequences of many rows (prefill), with the bits of the kernel for few (attention_cuda.h
// has the order of additions).
//
// For heads of 64. FLOPs: 4 x 64 a query and position; 550 GFLOP for gpt-oss's 8,192 rows, 0.70 ms at 790
// TFLOP/s. As dear are the weights: one exponential a query and position, 16 a cycle and multiprocessor, 0.56
// ms. So two warpgroups take turns: while one's products run, the other takes exponentials. Each has 64
// queries (8 rows of gpt-oss), and a warp asks for keys and values, which both read. Within a warpgroup the
// product with a step's values runs beside the next step's exponentials. Products read bfloat16 from shared
// memory: what comes as e4m3 comes into a ring of its own, and warps that have nothing else to do convert it.
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

constexpr int groups = 2;  // warpgroups that read
constexpr int group_queries = 64;
constexpr int tile_queries = groups * group_queries;
constexpr int readers = groups * 128;
constexpr int many_threads = 128 + readers;
constexpr int slots = 8;
// Of a query in shared memory, where eight of them meet all banks.
template <int dims>
inline constexpr int query_bytes = dims * 2 + 16;
constexpr int first_turn = 2;  // the barrier at which the first group waits to multiply; the second's is next
// A thread's: two rows of the step's scores, and of the outputs.
template <int dims>
inline constexpr int step_sums = attention_step_of(dims) / 2;
template <int dims>
inline constexpr int out_sums = dims / 2;
// Weights of a step as operands, of sixteen positions each.
template <int dims>
using StepWeights = std::uint32_t[attention_step_of(dims) / 16][4];

constexpr int converters = 3;  // warps
constexpr int coming_slots = 6;

template <int dims>
using ManyRing = KvRing<KvBf16, slots, readers / 32, dims>;

template <int dims>
struct alignas(128) ManyShared {
  std::uint8_t ring[slots * attention_slot_bytes<KvBf16>];
  std::uint8_t queries[tile_queries * query_bytes<dims>];
  std::uint64_t full[slots], empty[slots];
  std::uint64_t queries_full, queries_empty;
  long long before[attention_max_sequences + 1];  // tiles
};
// Behind it, of keys and values that are converted.
struct alignas(128) ComingShared {
  std::uint8_t ring[coming_slots * attention_slot_bytes<KvE4m3>];
  std::uint64_t full[coming_slots], empty[coming_slots];
};
template <class Kv>
inline constexpr bool is_converted = !std::is_same_v<Kv, KvBf16>;
template <class Kv, int dims>
inline constexpr std::size_t shared_bytes = sizeof(ManyShared<dims>) +
                                            (is_converted<Kv> ? sizeof(ComingShared) : 0);

// s = q keys: under way when it returns.
template <int dims>
__device__ __forceinline__ void multiply_keys(float (&s)[step_sums<dims>], const HeadQueries<dims>& q,
                                              const std::uint8_t* keys) {
  constexpr int eight_slots = dims * 8 * 2;  // bytes
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < dims / 16; ++k)
    ptx::wgmma_bf16(s, q.step[k], ptx::wgmma_operand<eight_slots>(keys + k * 256), k > 0);
  ptx::wgmma_commit();
}

// o = weights values, plus what o held if `add`: under way when it returns.
template <int dims>
__device__ __forceinline__ void multiply_values(float (&o)[out_sums<dims>], const StepWeights<dims>& weights,
                                                const std::uint8_t* values, bool add) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < attention_step_of(dims) / 16; ++k) {
    ptx::wgmma_bf16(
        o, weights[k],
        ptx::wgmma_operand<kv_group_bytes<KvBf16>>(values + k / 4 * kv_chunk_bytes<KvBf16> + k % 4 * 256),
        add || k > 0);
  }
  ptx::wgmma_commit();
}

// Scores into weights; the scales of what the split has summed up so far.
template <int dims>
__device__ __forceinline__ void weigh(float (&s)[step_sums<dims>], RowScalars& split, float (&scales)[2],
                                      float exponents) {
  constexpr int per_sum = step_sums<dims> / 16;  // of a lane's positions in one of the eight sums
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]);
#pragma unroll
    for (int i = 4; i < step_sums<dims> / 4; ++i)
      four[i % 4] = fmaxf(four[i % 4], fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]));
    float largest = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float m = fmaxf(split.m[row], exponent_of(__fmul_rn(largest, exponents)));
    const float from = finite_exponent(m);
    scales[row] = power_of_two(__fsub_rn(split.m[row], m));
    split.m[row] = m;
    float sums[8];  // of sixteen positions each, or eight
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int e = 0; e < per_sum; ++e) {
        float& weight = s[2 * per_sum * i + e / 2 * 4 + 2 * row + e % 2];
        weight = ptx::exp2_fast(fmaf(weight, exponents, -from));
        sums[i] = e == 0 ? weight : __fadd_rn(sums[i], weight);
      }
    }
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2) {
#pragma unroll
      for (int i = 0; i < 8; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
    split.l[row] = fmaf(split.l[row], scales[row], sums[0]);
  }
}

template <int dims>
__device__ __forceinline__ void pack(StepWeights<dims>& weights, const float (&s)[step_sums<dims>]) {
#pragma unroll
  for (int k = 0; k < attention_step_of(dims) / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = ptx::pack_bf16x2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

// A warpgroup's reading of one tile.
template <int dims>
struct Reading {
  using Tile = HeadTile<dims>;
  using Ring = ManyRing<dims>;
  static constexpr int step_positions = attention_step_of(dims);
  static constexpr int chunk_bytes = kv_chunk_bytes<KvBf16> * (dims / kv_head_dim);
  ManyShared<dims>& shared;
  const Ring& ring;
  const Tile& tile;
  int group, warp, lane;  // of the two groups; of its warps
  int first_query;        // of this thread: its row g
  int t;
  Sight sights[2];
  int whole_first, whole_past;  // the steps that all of the warp's queries see

  __device__ __forceinline__ Reading(ManyShared<dims>& shared_, const Ring& ring_, const Tile& tile_,
                                     int group_, int warp_, int lane_)
      : shared(shared_),
        ring(ring_),
        tile(tile_),
        group(group_),
        warp(warp_),
        lane(lane_),
        first_query(group_ * group_queries + warp_ * 16 + lane_ / 4),
        t(lane_ % 4),
        sights{tile_.sight(first_query), tile_.sight(first_query + 8)} {
    const int first_of_warp = group_ * group_queries + warp_ * 16;
    whole_first = (tile.sight(first_of_warp + 15).first + step_positions - 1) / step_positions;
    whole_past = tile.sight(first_of_warp).past / step_positions;
  }

  // What the queries do not see of a step.
  __device__ __forceinline__ void hide(float (&s)[step_sums<dims>], int step) const {
    if (step >= whole_first && step < whole_past) return;
    const int at = step * step_positions + 2 * t;
#pragma unroll
    for (int i = 0; i < step_sums<dims>; ++i) {
      const int position = at + i / 4 * 8 + i % 2, row = i / 2 % 2;
      if (position < sights[row].first || position >= sights[row].past) s[i] = attention_nothing;
    }
  }

  // Weights are zero where the tile sees nothing, but zero times what is no number is none. By all readers; a
  // thread has the same eight positions of some dimensions, and eight threads 128 bytes in a row.
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
      for (int dimension = thread / step_positions * 8 + thread % 8; dimension < dims;
           dimension += readers / eights) {
        uint4* const eight =
            reinterpret_cast<uint4*>(values + begin / kv_chunk_slots * chunk_bytes +
                                     2 * KvBf16::value_at(begin % kv_chunk_slots, dimension));
        const uint4 held = *eight;
        *eight = make_uint4(held.x & seen[0], held.y & seen[1], held.z & seen[2], held.w & seen[3]);
      }
    }
    ptx::fence_shared_writes();
    ptx::named_barrier(1, readers);  // all of it is cleared
  }

  __device__ __forceinline__ void release(const typename Ring::Place& at) const {
    if (lane == 0) ring.release(at);
  }

  __device__ __forceinline__ void run(typename Ring::Place& at, unsigned& tiles) const {
    const float exponents = __fmul_rn(tile.args.scale, log2_e);
    float s[step_sums<dims>], o[out_sums<dims>], total[out_sums<dims>], scales[2];
    StepWeights<dims> weights;
    RowScalars split{{attention_nothing, attention_nothing}, {0, 0}}, of_total;
#pragma unroll
    for (int i = 0; i < out_sums<dims>; ++i) total[i] = o[i] = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of_total.m[row] = tile.sink_exponent(first_query + 8 * row);
      of_total.l[row] = t == 0 ? tile.sink_weight(first_query + 8 * row) : 0;
    }
    const int first = tile.first_step(), past = tile.past_step();
    ptx::mbarrier_wait(&shared.queries_full, tiles & 1);
    const auto* const low = reinterpret_cast<const Bf16*>(shared.queries + first_query * query_bytes<dims>);
    const HeadQueries<dims> q(low, low + 8 * (query_bytes<dims> / 2), t);
    ptx::await_loads(q.of_loads());
    __syncwarp();  // all lanes have their queries
    if (lane == 0) ptx::mbarrier_arrive(&shared.queries_empty);
    ++tiles;
    ring.wait_full(at);
    multiply_keys<dims>(s, q, ring.slot(at));
    ptx::wgmma_wait_all(s);
    release(at);
    hide(s, first);
    weigh<dims>(s, split, scales, exponents);
    pack<dims>(weights, s);
    ring.wait_full(at.plus(1));
    bool add = false;  // whether the values' product goes on from what o holds
#pragma unroll 1
    for (int step = first + 1; step < past; ++step, at = at.plus(2)) {
      clear_unseen(ring.slot(at.plus(1)), step - 1);
      ring.wait_full(at.plus(2));

      ptx::named_barrier(first_turn + group, readers);  // the other group's products are queued
      multiply_keys<dims>(s, q, ring.slot(at.plus(2)));
      multiply_values<dims>(o, weights, ring.slot(at.plus(1)), add);
      ptx::named_barrier_arrive(first_turn + 1 - group, readers);

      ptx::wgmma_wait_but<1>(s);
      release(at.plus(2));
      hide(s, step);
      const RowScalars last = split;
      const bool begins = begins_split(step);
      if (begins) split = {{attention_nothing, attention_nothing}, {0, 0}};
      weigh<dims>(s, split, scales, exponents);
      // The wait for the next values stands between the weights and the wait for the last product: in one run
      // of instructions the assembler would have the exponentials wait too.
      ptx::computed_before(s);
      ring.wait_full(at.plus(3));
      ptx::wgmma_wait_all(o);
      release(at.plus(1));
      if (begins) {
        take_in_split(total, of_total, o, last);
      } else {
        scale(o, scales);
      }
      add = !begins;
      pack<dims>(weights, s);
    }
    clear_unseen(ring.slot(at.plus(1)), past - 1);
    multiply_values<dims>(o, weights, ring.slot(at.plus(1)), add);
    ptx::wgmma_wait_all(o);
    release(at.plus(1));
    at = at.plus(2);
    take_in_split(total, of_total, o, split);
    put_out(total, of_total);
  }

  __device__ __forceinline__ void put_out(const float (&total)[out_sums<dims>],
                                          const RowScalars& scalars) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float l = scalars.l[row];
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
      const int query = first_query + 8 * row;
      if (query >= tile.count) continue;
      const float factor = 1.0f / l;
      std::uint8_t* const out = tile.out(query, 2 * t);
#pragma unroll
      for (int j = 0; j < dims / 8; ++j) {
        // Eight columns further on are 128 bytes (token_offset).
        *reinterpret_cast<std::uint32_t*>(out + 128 * j) = ptx::pack_bf16x2(
            __fmul_rn(total[4 * j + 2 * row], factor), __fmul_rn(total[4 * j + 2 * row + 1], factor));
      }
    }
  }
};

// By one warp: asks for a tile's queries.
template <int dims>
__device__ __forceinline__ void fill_queries(const HeadTile<dims>& tile, unsigned tiles,
                                             ManyShared<dims>& shared, int lane) {
  constexpr int pieces = dims * 2 / 16;  // of a query
  ptx::mbarrier_wait(&shared.queries_empty, (tiles & 1) ^ 1);
#pragma unroll 4
  for (int query = lane / pieces; query < tile_queries; query += 32 / pieces) {
    ptx::copy_to_shared(shared.queries + query * query_bytes<dims> + lane % pieces * 16,
                        tile.queries(query) + lane % pieces * 8);
  }
  ptx::mbarrier_arrive_after_copies(&shared.queries_full);
}

template <class Kv, int dims>
__global__ void __launch_bounds__(many_threads, 1)
    sm90_attention_many(const __grid_constant__ AttentionCudaArgs args) {
  using Ring = ManyRing<dims>;
  using Coming = ComingRing<coming_slots, converters, dims>;
  using Tile = HeadTile<dims>;
  ManyShared<dims>& shared = *reinterpret_cast<ManyShared<dims>*>(ptx::dynamic_shared());
  ComingShared& of_coming = *reinterpret_cast<ComingShared*>(&shared + 1);  // if anything is converted
  const Coming coming{of_coming.ring, of_coming.full, of_coming.empty};
  const Ring ring{shared.ring, shared.full, shared.empty};
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 32);
    ptx::mbarrier_init(&shared.queries_empty, readers / 32);
    if constexpr (is_converted<Kv>) {
      ring.init(converters);
      coming.init();
    } else {
      ring.init();
    }
  }
  const int group_bits = group_bits_of(args), tile_rows = tile_queries >> group_bits;
  add_up_units<many_threads>(shared.before, args.sequence_count, [&](int index) -> long long {
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
      const int tile = unit / args.cache.kv_heads;
      const int index = sequence_of(shared.before, args.sequence_count, tile);
      const SequenceCuda sequence = args.sequences[index];
      const int first_row = (static_cast<int>(shared.before[index + 1]) - 1 - tile) * tile_rows;
      run(Tile{args, sequence, unit % args.cache.kv_heads, group_bits, first_row,
               min(tile_rows, sequence.row_count - first_row) << group_bits});
    }
  };
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  typename Ring::Place at;
  unsigned tiles = 0;
  if (warp < 4) {
    ptx::keep_registers<40>();
    typename Coming::Place at_coming;
    if (warp > 0) {
      if constexpr (is_converted<Kv>) {
        for_each_tile([&](const Tile& tile) {
          convert_steps<converters>(coming, at_coming, ring, at, tile.first_step(), tile.past_step(),
                                    warp - 1, lane);
        });
      }
      return;
    }
    for_each_tile([&](const Tile& tile) {
      fill_queries(tile, tiles++, shared, lane);
      if constexpr (is_converted<Kv>) {
        coming.fill(at_coming, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
      } else {
        ring.fill(at, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
      }
    });
  } else {
    ptx::take_registers<232>();
    const int group = warp / 4 - 1;
    if (group == 1) ptx::named_barrier_arrive(first_turn, readers);
    for_each_tile(
        [&](const Tile& tile) { Reading<dims>(shared, ring, tile, group, warp % 4, lane).run(at, tiles); });
  }
}

template <class Kv, int dims>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  const int processors = processors_of_device();
  cuda_check(cudaFuncSetAttribute(sm90_attention_many<Kv, dims>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes<Kv, dims>)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors)),
                 .threads = many_threads,
                 .shared_bytes = shared_bytes<Kv, dims>,
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_many<Kv, dims>, args);
}

}  // namespace

void launch_attention_many(const AttentionCudaArgs& args, cudaStream_t stream) {
  const bool e4m3 = args.cache.dtype == KvE4m3::dtype;
  if (args.cache.head_dim == kv_head_dim) {
    e4m3 ? launch<KvE4m3, 64>(args, stream) : launch<KvBf16, 64>(args, stream);
  } else {
    e4m3 ? launch<KvE4m3, 128>(args, stream) : launch<KvBf16, 128>(args, stream);
  }
}

}  // namespace nibble
