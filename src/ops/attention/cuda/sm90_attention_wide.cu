// paged_attention for sequences of many rows (prefill) and heads of 256, with the bits of the kernel for few
// (attention_cuda.h has the order of additions).
//
// A query's total and its split are 512 sums, more than a warpgroup's products leave room for. So eight warps
// have 64 queries: a pair of warps shares sixteen, each with half of a step's positions in the first product
// and half of the dimensions in the second. Weights pass between the two through shared memory. FLOPs: 4 x
// 256 a query and position; shared memory gives operands at about the rate of the tensor core's products.
//
// Tiles are dealt from a sequence's end, where they are largest, in rounds of alternating direction.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/attention/cuda/kv_operands.cuh"
#include "ops/cuda/launch.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int wide_dims = 256;
constexpr int wide_warps = 8, pairs = wide_warps / 2;
constexpr int wide_threads = (wide_warps + 1) * 32;
constexpr int tile_queries = pairs * 16;
constexpr int ring_bytes = 128 * 1024;
constexpr int query_bytes = wide_dims * 2 + 16;  // in shared memory, where eight of them meet all banks
constexpr int step_positions = attention_step_of(wide_dims);
constexpr int own_eights = step_positions / 2 / 8;  // of positions
constexpr int own_dims = wide_dims / 2, dim_eights = own_dims / 8;
constexpr int sixteens = step_positions / 16;

using WideTile = HeadTile<wide_dims>;
template <class Kv>
using WideRing = KvRing<Kv, ring_bytes / attention_slot_bytes<Kv, wide_dims>, wide_warps, wide_dims>;

struct alignas(128) WideShared {
  std::uint8_t ring[ring_bytes];
  std::uint8_t queries[tile_queries * query_bytes];
  uint4 weights[pairs][sixteens][32];  // operands of the second product
  float largest[2][tile_queries];      // of the scores of either half of positions
  float sums[2][tile_queries][4];      // of weights, by lanes
  std::uint64_t full[8], empty[8];
  std::uint64_t queries_full, queries_empty;
  long long before[attention_max_sequences + 1];  // tiles
};
static_assert(ring_bytes / attention_slot_bytes<KvE4m3, wide_dims> <= 8);

struct Scalars {
  float m[2], l[2];
};

// A warp's reading of one tile.
template <class Kv>
struct WideReading {
  using Ring = WideRing<Kv>;
  using Place = typename Ring::Place;
  WideShared& shared;
  const Ring& ring;
  const WideTile& tile;
  const int pair, half, lane, g, t;
  const int first_query;  // of this thread: its row g
  const Sight sights[2];
  float exponents;  // a score's

  __device__ __forceinline__ WideReading(WideShared& shared_, const Ring& ring_, const WideTile& tile_,
                                         int warp, int lane_)
      : shared(shared_),
        ring(ring_),
        tile(tile_),
        pair(warp % pairs),
        half(warp / pairs),
        lane(lane_),
        g(lane_ / 4),
        t(lane_ % 4),
        first_query(warp % pairs * 16 + lane_ / 4),
        sights{tile_.sight(first_query), tile_.sight(first_query + 8)} {
    exponents = __fmul_rn(tile.args.scale, log2_e);
  }

  __device__ __forceinline__ void await_partner() const { ptx::named_barrier(1 + pair, 64); }
  __device__ __forceinline__ void release(const Place& at) const {
    __syncwarp();  // all lanes have read
    if (lane == 0) ring.release(at);
  }

  // Of this warp's positions; -infinity for those not seen.
  __device__ __forceinline__ void score(float (&s)[own_eights][4], const Place& at, int step) const {
    ring.wait_full(at);
#pragma unroll
    for (int i = 0; i < 4 * own_eights; ++i) s[i / 4][i % 4] = 0;
    const auto* const low = reinterpret_cast<const Bf16*>(shared.queries + first_query * query_bytes);
    const Bf16* const high = low + 8 * (query_bytes / 2);
    constexpr int of_row = wide_dims / 64;  // groups of eight positions
#pragma unroll 1
    for (int group = 0; group < of_row; ++group) {
      const HeadQueries<64> q(low + 64 * group, high + 64 * group, t);
#pragma unroll
      for (int i = 0; i < own_eights; ++i) {
        GroupOperand<Kv> key;
        key.load(ring.slot(at) + ((half * own_eights + i) * of_row + group) * kv_group_bytes<Kv>, lane);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          ptx::mma_m16n8k16_bf16(s[i], q.step[k][0], q.step[k][1], q.step[k][2], q.step[k][3],
                                 key.pair(2 * k), key.pair(2 * k + 1));
        }
      }
    }
    release(at);
    const int first = step * step_positions + half * (8 * own_eights) + 2 * t;
#pragma unroll
    for (int i = 0; i < 4 * own_eights; ++i) {
      const int position = first + i / 4 * 8 + i % 2, row = i / 2 % 2;
      if (position < sights[row].first || position >= sights[row].past) s[i / 4][i % 4] = attention_nothing;
    }
  }

  // Scores into weights, which it leaves as operands; the scales of what the split has summed up so far.
  __device__ __forceinline__ void weigh(float (&s)[own_eights][4], Scalars& split, float (&scales)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
#pragma unroll
      for (int i = 1; i < own_eights; ++i) largest = fmaxf(largest, fmaxf(s[i][2 * row], s[i][2 * row + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if (t == 0) shared.largest[half][first_query + 8 * row] = largest;
    }
    await_partner();  // the largest scores of both are there, and what was left before has been read
    float sums[2];
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
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& weight = s[i][2 * row + e];
          weight = ptx::exp2_fast(fmaf(weight, exponents, -from));
        }
        of_eight[i] = __fadd_rn(s[i][2 * row], s[i][2 * row + 1]);
      }
#pragma unroll
      for (int apart = 1; apart < own_eights; apart *= 2) {
#pragma unroll
        for (int i = 0; i < own_eights; i += 2 * apart)
          of_eight[i] = __fadd_rn(of_eight[i], of_eight[i + apart]);
      }
      sums[row] = of_eight[0];
      shared.sums[half][query][t] = sums[row];
    }
#pragma unroll
    for (int i = 0; i < own_eights; i += 2) {
      shared.weights[pair][(half * own_eights + i) / 2][lane] =
          make_uint4(ptx::pack_bf16x2(s[i][0], s[i][1]), ptx::pack_bf16x2(s[i][2], s[i][3]),
                     ptx::pack_bf16x2(s[i + 1][0], s[i + 1][1]), ptx::pack_bf16x2(s[i + 1][2], s[i + 1][3]));
    }
    await_partner();  // weights and their sums are there
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = first_query + 8 * row;
      const float both = __fadd_rn(shared.sums[0][query][t], shared.sums[1][query][t]);
      split.l[row] = fmaf(split.l[row], scales[row], both);
    }
  }

  // o = weights values, of this warp's dimensions, plus o times its scales.
  __device__ __forceinline__ void add_values(float (&o)[dim_eights][4], const float (&scales)[2],
                                             const Place& at, int step) const {
    uint4 weights[sixteens];
#pragma unroll
    for (int k = 0; k < sixteens; ++k) weights[k] = shared.weights[pair][k][lane];
    ring.wait_full(at);
    // Weights are zero where the tile sees nothing, but zero times what is no number is none.
    const int begin = tile.first() - step * step_positions, end = tile.past() - step * step_positions;
    const bool whole = begin <= 0 && end >= step_positions;
#pragma unroll
    for (int n = 0; n < dim_eights; ++n) {
      GroupOperand<Kv> value;
      value.load(ring.slot(at) + (half * dim_eights + n) * kv_group_bytes<Kv>, lane);
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int position = 8 * (i / 2) + 2 * t + i % 2;
          if (position < begin || position >= end) value.clear(i);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = __fmul_rn(o[n][i], scales[i / 2]);
#pragma unroll
      for (int k = 0; k < sixteens; ++k) {
        ptx::mma_m16n8k16_bf16(o[n], weights[k].x, weights[k].y, weights[k].z, weights[k].w,
                               value.pair(2 * k), value.pair(2 * k + 1));
      }
    }
    release(at);
  }

  __device__ __forceinline__ void run(Place& at, unsigned& tiles) const {
    float s[own_eights][4], o[dim_eights][4], total[dim_eights][4];
    Scalars split, of_total;
#pragma unroll
    for (int i = 0; i < 4 * dim_eights; ++i) total[i / 4][i % 4] = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of_total.m[row] = tile.sink_exponent(first_query + 8 * row);
      of_total.l[row] = t == 0 ? tile.sink_weight(first_query + 8 * row) : 0;
    }
    ptx::mbarrier_wait(&shared.queries_full, tiles & 1);
    ++tiles;
    const int past = tile.past_step();
#pragma unroll 1
    for (int step = tile.first_step(); step < past;) {
      const int split_past = min(attention_split_begin(attention_split_of(step) + 1), past);
      split = {{attention_nothing, attention_nothing}, {0, 0}};
#pragma unroll
      for (int i = 0; i < 4 * dim_eights; ++i) o[i / 4][i % 4] = 0;
#pragma unroll 1
      for (; step < split_past; ++step, at = at.plus(2)) {
        float scales[2];
        score(s, at, step);
        weigh(s, split, scales);
        add_values(o, scales, at.plus(1), step);
      }
      take_in_split(total, of_total, o, split);
    }
    __syncwarp();  // all lanes have done with the queries
    if (lane == 0) ptx::mbarrier_arrive(&shared.queries_empty);
    put_out(total, of_total);
  }

  __device__ __forceinline__ void take_in_split(float (&total)[dim_eights][4], Scalars& scalars,
                                                const float (&o)[dim_eights][4], const Scalars& split) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const Scaling scaling = scaling_of(scalars.m[row], split.m[row]);
      scalars.m[row] = scaling.m;
      scalars.l[row] = take_in(scalars.l[row], split.l[row], scaling);
#pragma unroll
      for (int i = 0; i < 2 * dim_eights; ++i) {
        float& sum = total[i / 2][2 * row + i % 2];
        sum = take_in(sum, o[i / 2][2 * row + i % 2], scaling);
      }
    }
  }

  __device__ __forceinline__ void put_out(const float (&total)[dim_eights][4], const Scalars& scalars) const {
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
      for (int n = 0; n < dim_eights; ++n) {
        // Eight columns further on are 128 bytes (token_offset).
        *reinterpret_cast<std::uint32_t*>(out + 128 * n) =
            ptx::pack_bf16x2(__fmul_rn(total[n][2 * row], factor), __fmul_rn(total[n][2 * row + 1], factor));
      }
    }
  }
};

// By one warp: asks for a tile's queries.
__device__ __forceinline__ void fill_queries(const WideTile& tile, unsigned tiles, WideShared& shared,
                                             int lane) {
  ptx::mbarrier_wait(&shared.queries_empty, (tiles & 1) ^ 1);
#pragma unroll 4
  for (int query = 0; query < tile_queries; ++query)
    ptx::copy_to_shared(shared.queries + query * query_bytes + lane * 16, tile.queries(query) + lane * 8);
  ptx::mbarrier_arrive_after_copies(&shared.queries_full);
}

template <class Kv>
__global__ void __launch_bounds__(wide_threads, 1)
    sm90_attention_wide(const __grid_constant__ AttentionCudaArgs args) {
  WideShared& shared = *reinterpret_cast<WideShared*>(ptx::dynamic_shared());
  const WideRing<Kv> ring{shared.ring, shared.full, shared.empty};
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 32);
    ptx::mbarrier_init(&shared.queries_empty, wide_warps);
    ring.init();
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
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  typename WideRing<Kv>::Place at;
  unsigned tiles = 0;
#pragma unroll 1
  for (int begin = 0, round = 0; begin < units; begin += blocks, ++round) {
    const int unit = begin + (round % 2 == 0 ? block : blocks - 1 - block);
    if (unit >= units) continue;
    const int of_all = unit / args.cache.kv_heads;
    const int index = sequence_of(shared.before, args.sequence_count, of_all);
    const SequenceCuda sequence = args.sequences[index];
    const int first_row = (static_cast<int>(shared.before[index + 1]) - 1 - of_all) * tile_rows;
    const WideTile tile{args,       sequence,  unit % args.cache.kv_heads,
                        group_bits, first_row, min(tile_rows, sequence.row_count - first_row) << group_bits};
    if (warp == wide_warps) {
      fill_queries(tile, tiles++, shared, lane);
      ring.fill(at, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
    } else {
      WideReading<Kv>(shared, ring, tile, warp, lane).run(at, tiles);
    }
  }
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  cuda_check(cudaFuncSetAttribute(sm90_attention_wide<Kv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(WideShared))));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                 .threads = wide_threads,
                 .shared_bytes = sizeof(WideShared),
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_wide<Kv>, args);
}

}  // namespace

void launch_attention_wide(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
