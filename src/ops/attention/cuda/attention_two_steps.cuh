// What a block of eight warps does with two steps of a sequence's KV head at a time, for eight queries. In
// the first product each warp has 16 positions of a step, in the second 8 dimensions (of heads of 128: 8 and
// 16). Keys and values go from memory straight into its registers, as operands, before the grids ahead have
// ended: all but the chunks with the sequence's new rows, which come with the queries. So between a query's
// arrival and two steps' sums there are three barriers, where warps exchange queries, of which each fetches
// one, then their largest scores, then their weights.
//
// A launch is latency, much of it that of instructions that come from afar: so before its queries are there,
// each block does once what it will do with them, with other numbers (a decode step of gpt-oss-120b is 4 %
// longer without).
#pragma once

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/attention/cuda/kv_operands.cuh"
#include "ops/ptx/load.cuh"

namespace nibble::few_steps {

inline constexpr int warps = step_warps;
inline constexpr int short_threads = warps * 32;
inline constexpr int abreast = 2;  // steps
inline constexpr int queries_once = 8;

template <int dims>
struct ShortShared {
  float largest[abreast][queries_once][warps];
  uint2 weights[abreast][WarpPart<dims>::sixteens][32];
  float4 sums[abreast][warps][queries_once];  // by lanes
  // A query a row, and a word that nobody has, so that rows' same columns lie in different banks.
  uint4 queries[queries_once][dims / 8 + 1];
};

// A warp of the block, a lane, and its place in operands: query g, columns 2t and 2t + 1.
struct Reader {
  int warp, lane, g, t;

  __device__ Reader() : warp(ptx::warp_of_block()), lane(static_cast<int>(threadIdx.x) % 32) {
    g = lane / 4;
    t = lane % 4;
  }
};

// Eight queries as operands of the tensor core: of k16 step s what mma_m16n8k16_bf16 wants of row g.
template <int dims>
struct EightQueries {
  std::uint32_t step[dims / 16][2];

  __device__ __forceinline__ EightQueries(const ShortShared<dims>& shared, int lane) {
#pragma unroll
    for (int s = 0; s < dims / 16; s += 2)
      ptx::load_matrices(step[s][0], step[s][1], step[s + 1][0], step[s + 1][1],
                         &shared.queries[lane % 8][2 * s + lane / 8]);
  }
};

// What a warp has of a step: the keys of its positions and its dimensions of all values, zero where the tile
// sees none of a chunk.
template <class Kv, int dims>
struct StepOperands {
  using Part = WarpPart<dims>;
  static constexpr int eights = Part::eights, dim_eights = Part::dim_eights, groups = Part::groups;
  static constexpr int chunks = Part::step / kv_chunk_slots;
  static constexpr int groups_wide = dims / kv_head_dim;  // groups of keys that have the same positions
  const HeadTile<dims>& tile;
  const Reader& reader;
  int begin = 0;           // the step's first position
  int chunk[chunks] = {};  // of each 64 positions, -1: not seen
  GroupOperand<Kv> key[groups], value[groups];

  // Where the step is; nothing of it is loaded.
  __device__ __forceinline__ void enter(int step) {
    begin = step * Part::step;
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      const int at = begin + i * kv_chunk_slots;
      chunk[i] = at + kv_chunk_slots > tile.first() && at < tile.past() ? tile.chunk_of(at) : -1;
    }
#pragma unroll
    for (int i = 0; i < groups; ++i) key[i] = value[i] = {};
  }

  // What has the sequence's new rows (own), or what has none.
  __device__ __forceinline__ void load(bool own) {
    const int key_chunk = reader.warp < warps / chunks ? chunk[0] : chunk[chunks - 1];
    const std::uint8_t* const keys =
        of_chunk(tile.args.cache.keys, key_chunk, groups * reader.warp % (8 * groups_wide));
#pragma unroll
    for (int i = 0; i < groups; ++i) {
      const int eight = eights * reader.warp + i / groups_wide;
      if (key_chunk >= 0 && is_own(begin + 8 * (eight + 1)) == own)
        key[i].load_from_global(keys + i * kv_group_bytes<Kv>, reader.lane);
    }
#pragma unroll
    for (int half = 0; half < chunks; ++half) {
      if (chunk[half] < 0 || is_own(begin + (half + 1) * kv_chunk_slots) != own) continue;
      const std::uint8_t* const values =
          of_chunk(tile.args.cache.values, chunk[half], dim_eights * reader.warp);
#pragma unroll
      for (int i = 0; i < dim_eights; ++i)
        value[dim_eights * half + i].load_from_global(values + i * kv_group_bytes<Kv>, reader.lane);
    }
  }
  // Of what load brought with the same `own`. Weights are zero where the tile sees nothing, but zero times
  // what is no number is none.
  __device__ __forceinline__ void clear_unseen(bool own) {
#pragma unroll
    for (int half = 0; half < chunks; ++half) {
      const int at = begin + half * kv_chunk_slots;
      const int first = tile.first() - at, past = tile.past() - at;
      if (chunk[half] < 0 || is_own(at + kv_chunk_slots) != own) continue;
      if (first <= 0 && past >= kv_chunk_slots) continue;
#pragma unroll
      for (int i = 0; i < 16 * dim_eights; ++i) {
        const int position = 8 * (i % 16 / 2) + 2 * reader.t + i % 2;
        if (position < first || position >= past) value[dim_eights * half + i / 16].clear(i % 16);
      }
    }
  }

  // Of positions 8n + 2t + e of the warp's: scores[n][e] of query g.
  __device__ __forceinline__ void multiply_keys(float (&scores)[eights][4],
                                                const EightQueries<dims>& q) const {
#pragma unroll
    for (int k = 0; k < dims / 16; ++k) {
#pragma unroll
      for (int n = 0; n < eights; ++n) {
        const GroupOperand<Kv>& from = key[groups_wide * n + k / 4];
        if (k == 0) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
        ptx::mma_m16n8k16_bf16(scores[n], q.step[k][0], 0, q.step[k][1], 0, from.pair(k % 4 * 2),
                               from.pair(k % 4 * 2 + 1));
      }
    }
  }
  // Sixteen `k` of the step. Query g's, of dimensions 2t and 2t + 1 of the warp's eight i, are the first two
  // of o[i].
  __device__ __forceinline__ void multiply_values(float (&o)[dim_eights][4],
                                                  const uint2 (&weights)[Part::sixteens][32], int k) const {
    const uint2 of_sixteen = weights[k][reader.lane];
#pragma unroll
    for (int i = 0; i < dim_eights; ++i) {
      const GroupOperand<Kv>& from = value[k / 4 * dim_eights + i];
      ptx::mma_m16n8k16_bf16(o[i], of_sixteen.x, 0, of_sixteen.y, 0, from.pair(k % 4 * 2),
                             from.pair(k % 4 * 2 + 1));
    }
  }

 private:
  // Whether what ends with position `past` has new rows.
  __device__ __forceinline__ bool is_own(int past) const { return past > tile.sequence.first_position; }
  __device__ __forceinline__ static const std::uint8_t* of_chunk(const void* layer, int chunk, int group) {
    return static_cast<const std::uint8_t*>(layer) +
           static_cast<std::size_t>(chunk) * (groups_wide * kv_chunk_bytes<Kv>)+group * kv_group_bytes<Kv>;
  }
};

// The exponent of what a split has summed up with a step, and what all before it is multiplied by.
struct Weighed {
  float m, scale;
};

// Two steps side by side, for eight queries of a tile, of which `query` is this lane's.
template <class Kv, int dims>
struct TwoSteps {
  using Part = WarpPart<dims>;
  static constexpr int eights = Part::eights, dim_eights = Part::dim_eights;
  ShortShared<dims>& shared;
  const Reader& reader;
  StepOperands<Kv, dims> low, high;
  int first, past;  // positions that query g sees, counted from the thread's first of step 0
  float exponents;  // a score's
  float scores[abreast][eights][4];

  __device__ __forceinline__ TwoSteps(ShortShared<dims>& shared_, const Reader& reader_,
                                      const HeadTile<dims>& tile, int query)
      : shared(shared_), reader(reader_), low{tile, reader_}, high{tile, reader_} {
    const Sight sight = tile.sight(query);
    first = sight.first - 8 * eights * reader.warp - 2 * reader.t;
    past = sight.past - 8 * eights * reader.warp - 2 * reader.t;
    exponents = __fmul_rn(tile.args.scale, log2_e);
  }

  __device__ __forceinline__ void enter(int step) {
    low.enter(step);
    high.enter(step + 1);
  }
  // What follows from where the steps lie, such as which elements are seen, is computed behind this, and not
  // ahead of a loop that this stands in, where it would take registers.
  __device__ __forceinline__ void hold_places() {
    low.begin = ptx::held(low.begin);
    high.begin = low.begin + Part::step;
  }
  // What was in memory before the kernel ahead began.
  __device__ __forceinline__ void load_settled() {
    low.load(false);
    high.load(false);
    low.clear_unseen(false);
    high.clear_unseen(false);
  }
  // The queries, once they are there, of which `of_warp` is this warp's, and with them what the sequence's
  // new rows are in; all else is on its way by then. A rehearsal takes other memory: of the queries' own the
  // first-level cache would keep what was there before they came.
  __device__ __forceinline__ EightQueries<dims> await_queries(const Bf16* of_warp, bool rehearsal) {
    if (!rehearsal) {
      load_settled();
      ptx::grid_dependency_wait();  // queries, and the sequence's new rows
    }
    struct alignas(dims / 16) OfLane {
      Bf16 dimensions[dims / 32];
    };
    const void* const from = rehearsal ? low.tile.args.cache.keys : of_warp;
    const OfLane of_lane = static_cast<const OfLane*>(from)[reader.lane];
    low.load(true);
    high.load(true);
    reinterpret_cast<OfLane*>(shared.queries[reader.warp])[reader.lane] = of_lane;
    __syncthreads();  // the queries are there
    return EightQueries<dims>(shared, reader.lane);
  }
  // The scores, the largest of which the block has when this returns.
  __device__ __forceinline__ void score(const EightQueries<dims>& q) {
    low.multiply_keys(scores[0], q);
    high.multiply_keys(scores[1], q);
    find_largest(low.begin, 0);
    find_largest(high.begin, 1);
    low.clear_unseen(true);
    high.clear_unseen(true);
    __syncthreads();  // the largest scores are there
  }
  __device__ __forceinline__ void find_largest(int begin, int of) {
    float(&s)[eights][4] = scores[of];
#pragma unroll
    for (int i = 0; i < 2 * eights; ++i) {
      const int position = begin + i / 2 * 8 + i % 2;
      if (position < first || position >= past) s[i / 2][i % 2] = attention_nothing;
    }
    float largest = fmaxf(s[0][0], s[0][1]);
    if constexpr (eights == 2) largest = fmaxf(largest, fmaxf(s[1][0], s[1][1]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    if (reader.t == 0) shared.largest[of][reader.g][reader.warp] = largest;
  }

  // Leaves this warp's weights and their sums for the others. m: of what the split has summed up before.
  __device__ __forceinline__ Weighed weigh(float m, int of) const {
    const float4* const largest = reinterpret_cast<const float4*>(shared.largest[of][reader.g]);
    const float4 a = largest[0], b = largest[1];
    const float most =
        fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
    const float larger = fmaxf(m, exponent_of(__fmul_rn(most, exponents)));
    const float from = finite_exponent(larger);
    float weights[2 * eights];
#pragma unroll
    for (int i = 0; i < 2 * eights; ++i)
      weights[i] = ptx::exp2_fast(fmaf(scores[of][i / 2][i % 2], exponents, -from));
    float sum = __fadd_rn(weights[0], weights[1]);
#pragma unroll
    for (int i = 2; i < 2 * eights; ++i) sum = __fadd_rn(sum, weights[i]);
    reinterpret_cast<float*>(&shared.sums[of][reader.warp][reader.g])[reader.t] = sum;
    leave_weights(weights, of);
    return {larger, power_of_two(__fsub_rn(m, larger))};
  }
  // As the operand of a sixteen of positions, all of it or its half.
  __device__ __forceinline__ void leave_weights(const float (&weights)[2 * eights], int of) const {
    const std::uint32_t first_eight = ptx::pack_bf16x2(weights[0], weights[1]);
    if constexpr (eights == 2) {
      shared.weights[of][reader.warp][reader.lane] =
          make_uint2(first_eight, ptx::pack_bf16x2(weights[2], weights[3]));
    } else {
      uint2& of_sixteen = shared.weights[of][reader.warp / 2][reader.lane];
      reinterpret_cast<std::uint32_t*>(&of_sixteen)[reader.warp % 2] = first_eight;
    }
  }
  // Of all warps' sums for query g lane t's.
  __device__ __forceinline__ float sum_of(int of, int t) const {
    float sums[warps];
#pragma unroll
    for (int i = 0; i < warps; ++i)
      sums[i] = reinterpret_cast<const float*>(&shared.sums[of][i][reader.g])[t];
#pragma unroll
    for (int apart = 1; apart < warps; apart *= 2) {
#pragma unroll
      for (int i = 0; i < warps; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
    return sums[0];
  }
  __device__ __forceinline__ void multiply_both(float (&of_low)[dim_eights][4],
                                                float (&of_high)[dim_eights][4]) const {
#pragma unroll
    for (int k = 0; k < Part::sixteens; ++k) {
      low.multiply_values(of_low, shared.weights[0], k);
      high.multiply_values(of_high, shared.weights[1], k);
    }
  }
};

// The tile of a sequence's KV head, the launch's pair number `pair`; none: has no queries.
template <int dims>
__device__ __forceinline__ HeadTile<dims> tile_of(const AttentionCudaArgs& args, int pair) {
  const int group_bits = group_bits_of(args);
  const SequenceCuda sequence = args.sequences[pair / args.cache.kv_heads];
  const bool has_few = has_few_rows(sequence, group_bits);
  return {args,       sequence, pair % args.cache.kv_heads,
          group_bits, 0,        has_few ? sequence.row_count << group_bits : 0};
}

}  // namespace nibble::few_steps
