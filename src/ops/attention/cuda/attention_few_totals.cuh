// Totals of the kernel for few rows: what a block's threads hold of them, how they leave them for other
// blocks, and how what was left becomes an output. sm90_attention_few.cu says which block does which.
#pragma once

#include "ops/attention/cuda/attention_shares.cuh"
#include "ops/attention/cuda/kv_operands.cuh"
#include "ops/cuda/absent.cuh"
#include "ops/ptx/give_up.cuh"

namespace nibble::few_rows {

inline constexpr int warps = step_warps;
inline constexpr int readers = warps * 32;
inline constexpr int few_threads = readers + 32;
inline constexpr int staged_bytes = 64 * 1024;  // of totals that other blocks have left
template <int dims>
inline constexpr int ring_bytes = dims > 128 ? 128 * 1024 : 64 * 1024;
template <int dims>
struct Part : WarpPart<dims> {
  static constexpr int partial_floats = attention_partial_floats_of(dims);
  static constexpr int partial_quads = partial_floats / 4;
  static constexpr int total_quads = dims / 4 + 1;  // of them: o and l
  static constexpr int rows_once = readers / total_quads;
};

inline constexpr int most_slots = ring_bytes<64> / attention_slot_bytes<KvE4m3>;
template <class Kv, int dims>
using FewRing = KvRing<Kv, ring_bytes<dims> / attention_slot_bytes<Kv, dims>, warps, dims>;
static_assert(ring_bytes<256> / attention_slot_bytes<KvE4m3, 256> <= most_slots);

// A block's shared memory: the ring, in which after the last step lies what was left by other blocks; then
// this; then of each sequence the steps before it and, in the high bits, splits (add_up_units).
struct alignas(128) FewShared {
  uint4 weights[warps][32];  // of tiles with one row a lane half of each: uint2
  float largest[attention_tile][warps];
  float sums[warps][attention_tile][4];
  float factors[attention_tile];
  std::uint64_t full[most_slots], empty[most_slots];
  Share shares[2];        // of the block's first pair and of its last one
  std::uint64_t planned;  // the shares are there
  std::uint32_t nobodys;

  __device__ long long* before() { return reinterpret_cast<long long*>(this + 1); }
};

template <int dims>
inline constexpr int shared_bytes(int sequences) {
  return ring_bytes<dims> + static_cast<int>(sizeof(FewShared)) +
         (sequences + 1) * static_cast<int>(sizeof(long long));
}

static_assert(
    2 * (shared_bytes<128>(attention_max_sequences) + shared_of_block + 128) <= shared_196_kb.bytes,
    "two blocks fit a multiprocessor: the whole grid runs at once, or with few blocks at work the next "
    "launch's first keys come while this one ends");

// A total, a split's or a query's, for a lane's two rows; of row r dimensions 2t and 2t + 1 of the warp's
// eight i are o[i][2r] and o[i][2r + 1]. l is lane t's, of row g in warp 0 and of row g + 8 in warp 1.
template <int dims>
struct StepTotal {
  static constexpr int eights = Part<dims>::dim_eights;
  float m[2], l, o[eights][4];

  template <int rows>
  __device__ void take_in_all(const StepTotal& split, int warp) {
    Scaling scalings[rows];
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      scalings[row] = scaling_of(m[row], split.m[row]);
      m[row] = scalings[row].m;
#pragma unroll
      for (int i = 0; i < 2 * eights; ++i) {
        float& sum = o[i / 2][2 * row + i % 2];
        sum = take_in(sum, split.o[i / 2][2 * row + i % 2], scalings[row]);
      }
    }
    l = take_in(l, split.l, warp % rows == 0 ? scalings[0] : scalings[rows - 1]);
  }
};

__device__ __forceinline__ void await_readers() { ptx::named_barrier(1, readers); }

// What a reader is: warp w of the eight, its lane, and the lane's place in operands.
struct Reader {
  int thread, warp, lane, g, t;

  template <int dims>
  __device__ int first() const {  // its first position of a step
    return 8 * Part<dims>::eights * warp + 2 * t;
  }
  template <int dims>
  __device__ int dimension(int eight) const {  // its first one of its warp's eight
    return 8 * (Part<dims>::dim_eights * warp + eight) + 2 * t;
  }
};

// A total of this thread's rows to its place, for other blocks.
template <int rows, int dims>
__device__ __forceinline__ void leave(float* partial, const StepTotal<dims>& total, int count,
                                      const Reader& reader) {
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    const int query = reader.g + 8 * row;
    if (query >= count) continue;
    float* const at = partial + query * Part<dims>::partial_floats;
#pragma unroll
    for (int i = 0; i < Part<dims>::dim_eights; ++i)
      ptx::store_relaxed(reinterpret_cast<float2*>(at + reader.dimension<dims>(i)),
                         make_float2(total.o[i][2 * row], total.o[i][2 * row + 1]));
    if (reader.warp != row) continue;
    ptx::store_relaxed(at + dims + reader.t, total.l);
    ptx::store_relaxed(at + dims + 4 + reader.t, total.m[row]);
  }
}

// A total of this thread's rows from where another block leaves it, in the order of leave(); its place is
// absent afterwards. l is there in the warps whose it is.
template <int rows, int dims>
__device__ __forceinline__ void adopt(float* partial, StepTotal<dims>& total, int count, const Reader& reader,
                                      std::uint32_t* stuck) {
  const float nothing = absent_word();
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    const int query = reader.g + 8 * row;
    if (query >= count) continue;
    const float* const at = partial + query * Part<dims>::partial_floats;
    for (unsigned polls = 0;; ++polls) {
      if (polls == ptx::give_up_polls) ptx::give_up(stuck, Stuck::attention_totals);
      const float m = ptx::load_relaxed(at + dims + 4 + reader.t);
      const float l = reader.warp == row ? ptx::load_relaxed(at + dims + reader.t) : 0.0f;
      bool absent = is_absent(m) || is_absent(l);
#pragma unroll
      for (int i = 0; i < Part<dims>::dim_eights; ++i) {
        const float2 both =
            ptx::load_relaxed(reinterpret_cast<const float2*>(at + reader.dimension<dims>(i)));
        absent = absent || is_absent(both.x) || is_absent(both.y);
        total.o[i][2 * row] = both.x;
        total.o[i][2 * row + 1] = both.y;
      }
      if (absent) continue;
      total.m[row] = m;
      if (reader.warp == row) total.l = l;
      break;
    }
  }
  await_readers();  // every warp has m
  StepTotal<dims> absent;
  absent.m[0] = absent.m[1] = absent.l = nothing;
#pragma unroll
  for (int i = 0; i < 4 * Part<dims>::dim_eights; ++i) absent.o[i / 4][i % 4] = nothing;
  leave<rows>(partial, absent, count, reader);
}

template <int rows, int dims>
__device__ __forceinline__ void put_out(const HeadTile<dims>& tile, const StepTotal<dims>& total,
                                        FewShared& shared, const Reader& reader) {
  std::uint8_t* out[rows];
#pragma unroll
  for (int row = 0; row < rows; ++row) out[row] = tile.out(reader.g + 8 * row, reader.dimension<dims>(0));
  float l = total.l;
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
  if (reader.warp < rows && reader.t == 0) shared.factors[reader.g + 8 * reader.warp] = 1.0f / l;
  await_readers();  // the factors are there; the next pair's come behind other barriers
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    const int query = reader.g + 8 * row;
    if (query >= tile.count) continue;
    const float factor = shared.factors[query];
#pragma unroll
    for (int i = 0; i < Part<dims>::dim_eights; ++i) {
      // Eight columns further on are 128 bytes (token_offset).
      *reinterpret_cast<std::uint32_t*>(out[row] + 128 * i) = ptx::pack_bf16x2(
          __fmul_rn(total.o[i][2 * row], factor), __fmul_rn(total.o[i][2 * row + 1], factor));
    }
  }
}

// Brings `count` totals near, from `begin` of a share's on: the front's, then the splits behind the front. Of
// each `quads` of four words, from `from` on; they are absent afterwards.
__device__ __forceinline__ void fetch_totals(const Share& share, float* from, std::size_t apart, int begin,
                                             int count, int quads, float4* staged, int thread,
                                             std::uint32_t* stuck) {
  constexpr int once = 4;
  const unsigned inverse = (1u << 21) / static_cast<unsigned>(quads) + 1;  // exact up to 6,144 / quads
  const float nothing = absent_word();
#pragma unroll 1
  for (int first = thread; first < count * quads; first += once * readers) {
    float4* places[once];
    float4 found[once];
#pragma unroll
    for (int i = 0; i < once; ++i) {
      const int at = min(first + i * readers, count * quads - 1);
      const int nth = static_cast<int>(static_cast<unsigned>(at) * inverse >> 21), total = begin + nth;
      places[i] = reinterpret_cast<float4*>(
          from + (total == 0 ? 0 : static_cast<std::size_t>(total + share.skipped) * apart) +
          (at - nth * quads) * 4);
      if (first + i * readers < count * quads) found[i] = ptx::load_relaxed(places[i]);
    }
#pragma unroll
    for (int i = 0; i < once; ++i) {
      if (first + i * readers >= count * quads) continue;
      for (unsigned polls = 0; is_absent(found[i]); ++polls) {
        if (polls == ptx::give_up_polls) ptx::give_up(stuck, Stuck::attention_totals);
        found[i] = ptx::load_relaxed(places[i]);
      }
      staged[first + i * readers] = found[i];
      ptx::store_relaxed(places[i], make_float4(nothing, nothing, nothing, nothing));
    }
  }
}

// Queries [first, past) of a pair, at most rows_once, from what all blocks have left of it.
template <int dims>
__device__ __forceinline__ void end_queries(const Work<dims>& work, const Share& share, int first, int past,
                                            FewShared& shared, const Reader& reader) {
  constexpr int total_quads = Part<dims>::total_quads, partial_quads = Part<dims>::partial_quads;
  const int totals = share.splits - share.skipped, rows = past - first;
  const int once = staged_bytes / (rows * Part<dims>::partial_floats * 4);
  const std::size_t apart = work.apart();
  float* const from = share.partials + first * Part<dims>::partial_floats;
  float4* const staged = reinterpret_cast<float4*>(ptx::dynamic_shared());
  const int row = reader.thread / total_quads, quad = reader.thread % total_quads;
  const HeadTile<dims> tile{work.args,
                            share.sequence,
                            share.kv_head,
                            work.group_bits,
                            0,
                            share.sequence.row_count << work.group_bits};
  std::uint8_t* const out = tile.out(first + min(row, rows - 1), 4 * min(quad, total_quads - 2));
  float m = attention_nothing;
  float4 sums = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int begin = 0; begin < totals; begin += once) {
    const int count = min(once, totals - begin);
    await_readers();  // what was staged before has been read, and the last of the ring
    fetch_totals(share, from, apart, begin, count, rows * partial_quads, staged, reader.thread,
                 work.args.workspace.stuck);
    await_readers();  // it is staged
    if (row >= rows) continue;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float4* const at = staged + (i * rows + row) * partial_quads;
      const Scaling scaling = scaling_of(m, at[total_quads].x);
      const float4 four = at[quad];
      m = scaling.m;
      sums.x = take_in(sums.x, four.x, scaling);
      sums.y = take_in(sums.y, four.y, scaling);
      sums.z = take_in(sums.z, four.z, scaling);
      sums.w = take_in(sums.w, four.w, scaling);
    }
  }
  if (row < rows && quad == total_quads - 1)
    shared.factors[row] = 1.0f / __fadd_rn(__fadd_rn(sums.x, sums.y), __fadd_rn(sums.z, sums.w));
  await_readers();  // every query's factor is there
  if (row < rows && quad < total_quads - 1) {
    const float factor = shared.factors[row];
    *reinterpret_cast<uint2*>(out) =
        make_uint2(ptx::pack_bf16x2(__fmul_rn(sums.x, factor), __fmul_rn(sums.y, factor)),
                   ptx::pack_bf16x2(__fmul_rn(sums.z, factor), __fmul_rn(sums.w, factor)));
  }
  await_readers();  // the factors have been read
}

template <int dims>
__device__ __forceinline__ void end_share(const Work<dims>& work, const Share& share, FewShared& shared,
                                          const Reader& reader) {
  if (!share.is_cut()) return;
#pragma unroll 1
  for (int begin = share.first_query; begin < share.past_query; begin += Part<dims>::rows_once)
    end_queries(work, share, begin, min(begin + Part<dims>::rows_once, share.past_query), shared, reader);
}

}  // namespace nibble::few_rows
