// paged_attention for sequences of few rows (decode). For the order of additions see attention_cuda.h.
//
// Bytes: 256 a position and KV head, 16.8 MB for gpt-oss at 8,192 positions (3.6 us at 4,650 GB/s). FLOPs: 4
// x 64 a query and position, with half of the tensor core's 16 rows used by the 8 heads of one row.
//
// All steps of all sequences and KV heads are one row of work, of which each block has an equal run that
// begins and ends with splits. A warp asks for keys and values, by bulk copies into a ring that holds 96 KB:
// so much is on its way in each multiprocessor whatever the arithmetic does. Eight warps share a step: in the
// first product each has 16 positions, in the second 8 dimensions, and the weights between them pass through
// shared memory as operands.
//
// A KV head's steps that lie in one block end there. Where a run's end cuts them, the block that has the
// front leaves its total, the others each split's, and when all have come, the blocks that have splits share
// out the queries and take in what was left in order. Blocks wait for each other there: the grid has one for
// each multiprocessor, so all of them run.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/load.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int warps = attention_step / 16;
constexpr int readers = warps * 32;
constexpr int few_threads = readers + 32;
constexpr int slots = 6;
constexpr int uncut_steps = 2;  // a KV head of so few stays in one block
constexpr int partial_quads = attention_partial_floats / 4;
constexpr int total_quads = kv_head_dim / 4 + 1;  // of them: o and l
constexpr int rows_once = readers / total_quads;
static_assert(warps * 8 == kv_head_dim);

using Ring = KvRing<slots, warps>;

struct alignas(128) FewShared {
  std::uint8_t ring[slots * attention_slot_bytes];  // after the last step: what was left by other blocks
  uint4 weights[warps][32];
  float largest[attention_tile][warps];
  float sums[warps][attention_tile][4];
  std::uint64_t full[slots], empty[slots];
  long long before[attention_max_sequences + 1];  // steps and, in the high bits, splits
};

// A total, a split's or a query's, for a lane's two rows; of row r dimensions 8w + 2t and + 1 are o[2r] and
// o[2r + 1], l is lane t's.
struct Total {
  float m[2], l[2], o[4];

  __device__ void take_in_all(const Total& split) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const Scaling scaling = scaling_of(m[row], split.m[row]);
      m[row] = scaling.m;
      l[row] = take_in(l[row], split.l[row], scaling);
#pragma unroll
      for (int e = 0; e < 2; ++e) o[2 * row + e] = take_in(o[2 * row + e], split.o[2 * row + e], scaling);
    }
  }
};

// All steps of one sequence and KV head, the first of which is unit `unit` of the launch.
struct Pair {
  Tile tile;
  int sequence, unit, first, past;

  __device__ int first_split() const { return attention_split_of(first); }
  __device__ int splits() const { return attention_split_of(past - 1) + 1 - first_split(); }
};

struct Work {
  const AttentionCudaArgs& args;
  const long long* before;
  int group, units;

  __device__ Tile tile_of(int sequence, int kv_head) const {
    const SequenceCuda rows = args.sequences[sequence];
    return {args, rows, kv_head, group, 0, rows.row_count * group};
  }
  __device__ Pair pair_of(int unit) const {
    const int sequence = sequence_of(before, args.sequence_count, unit / args.cache.kv_heads);
    const int begin = static_cast<int>(before[sequence]);
    const int steps = static_cast<int>(before[sequence + 1]) - begin;
    const int kv_head = (unit - begin * args.cache.kv_heads) / steps;
    const Tile tile = tile_of(sequence, kv_head);
    const int first = tile.first_step();
    return {tile, sequence, begin * args.cache.kv_heads + kv_head * steps, first, first + steps};
  }
  // Where a block's run begins; one past the last block's is where all ends.
  __device__ int begin_of(int block) const {
    const int unit = static_cast<int>(static_cast<long long>(block) * units / static_cast<int>(gridDim.x));
    if (unit >= units) return units;
    const Pair pair = pair_of(unit);
    if (unit == pair.unit) return unit;
    if (pair.past - pair.first <= uncut_steps) return pair.unit + pair.past - pair.first;
    const int step = pair.first + unit - pair.unit, split = attention_split_of(step);
    if (attention_split_begin(split) == step) return unit;
    return pair.unit + min(attention_split_begin(split + 1), pair.past) - pair.first;
  }
  // The block whose run has this unit, one that a run may begin with.
  __device__ int block_of(int unit) const {
    return static_cast<int>(((unit + 1ll) * static_cast<int>(gridDim.x) - 1) / units);
  }
  // What is left of a pair's split, for its first query.
  __device__ float* partial(const Pair& pair, int split) const {
    const int at = static_cast<int>(before[pair.sequence] >> 32) + split;
    return args.workspace.partials + (static_cast<std::size_t>(at) * args.cache.kv_heads +
                                      static_cast<std::size_t>(pair.tile.kv_head)) *
                                         (attention_tile * attention_partial_floats);
  }
  __device__ std::uint32_t* arrived(const Pair& pair) const {
    return &args.workspace.arrived[pair.sequence * args.cache.kv_heads + pair.tile.kv_head];
  }
};

__device__ __forceinline__ void await_readers() { ptx::named_barrier(1, readers); }

// What a reader is: warp w of the eight, its lane, and the lane's place in operands.
struct Reader {
  int thread, warp, lane, g, t;
};

// One step's way into a split's total.
struct Step {
  FewShared& shared;
  const Ring& ring;
  const Tile& tile;
  const TileQueries& q;
  Sight sights[2];
  float exponents;  // a score's

  __device__ __forceinline__ void run(Total& total, int step, unsigned& at, const Reader& reader) const {
    const auto [thread, warp, lane, g, t] = reader;
    float s[2][4];
    ring.wait_full(at);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::uint8_t* const keys = ring.slot(at) + (2 * warp + n) * (kv_group_elements * 2) + lane * 16;
      std::uint32_t key[8];
      ptx::load_matrices(key[0], key[1], key[2], key[3], keys);
      ptx::load_matrices(key[4], key[5], key[6], key[7], keys + 512);
      s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::mma_m16n8k16_bf16(s[n], q.step[k][0], q.step[k][1], q.step[k][2], q.step[k][3], key[2 * k],
                               key[2 * k + 1]);
      }
    }
    __syncwarp();  // all lanes have their keys
    if (lane == 0) ring.release(at);
    const int first_position = step * attention_step + 16 * warp + 2 * t;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = attention_nothing;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = first_position + i / 2 * 8 + i % 2;
        float& score = s[i / 2][2 * row + i % 2];
        if (position < sights[row].first || position >= sights[row].past) score = attention_nothing;
        largest = fmaxf(largest, score);
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if (t == 0) shared.largest[g + 8 * row][warp] = largest;
    }
    // This warp's values: its 8 dimensions, all positions.
    std::uint32_t value[16];
    ring.wait_full(at + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::load_matrices(value[4 * i], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3],
                         ring.slot(at + 1) + i / 2 * kv_chunk_bytes + warp * (kv_group_elements * 2) +
                             i % 2 * 512 + lane * 16);
    }
    __syncwarp();  // all lanes have their values
    if (lane == 0) ring.release(at + 1);
    clear_unseen(value, step, t);
    await_readers();  // the largest scores are there
    float scales[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = attention_nothing;
#pragma unroll
      for (int i = 0; i < warps; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&shared.largest[g + 8 * row][i]);
        largest = fmaxf(fmaxf(fmaxf(largest, four.x), fmaxf(four.y, four.z)), four.w);
      }
      const float m = fmaxf(total.m[row], exponent_of(__fmul_rn(largest, exponents)));
      const float from = finite_exponent(m);
      scales[row] = power_of_two(__fsub_rn(total.m[row], m));
      total.m[row] = m;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& weight = s[i / 2][2 * row + i % 2];
        weight = ptx::exp2_fast(fmaf(weight, exponents, -from));
      }
      shared.sums[warp][g + 8 * row][t] =
          __fadd_rn(__fadd_rn(__fadd_rn(s[0][2 * row], s[0][2 * row + 1]), s[1][2 * row]), s[1][2 * row + 1]);
    }
    shared.weights[warp][lane] =
        make_uint4(ptx::pack_bf16x2(s[0][0], s[0][1]), ptx::pack_bf16x2(s[0][2], s[0][3]),
                   ptx::pack_bf16x2(s[1][0], s[1][1]), ptx::pack_bf16x2(s[1][2], s[1][3]));
    await_readers();  // weights and their sums are there, and the largest scores have been read
#pragma unroll
    for (int i = 0; i < 4; ++i) total.o[i] = __fmul_rn(total.o[i], scales[i / 2]);
#pragma unroll
    for (int k = 0; k < warps; ++k) {
      const uint4 weights = shared.weights[k][lane];
      ptx::mma_m16n8k16_bf16(total.o, weights.x, weights.y, weights.z, weights.w, value[2 * k],
                             value[2 * k + 1]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sums[warps];
#pragma unroll
      for (int i = 0; i < warps; ++i) sums[i] = shared.sums[i][g + 8 * row][t];
#pragma unroll
      for (int apart = 1; apart < warps; apart *= 2) {
#pragma unroll
        for (int i = 0; i < warps; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
      }
      total.l[row] = fmaf(total.l[row], scales[row], sums[0]);
    }
    at += 2;
  }

  // Weights are zero where the tile sees nothing, but zero times what is no number is none.
  __device__ __forceinline__ void clear_unseen(std::uint32_t (&value)[16], int step, int t) const {
    const int first = tile.first() - step * attention_step, past = tile.past() - step * attention_step;
    if (first <= 0 && past >= attention_step) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int position = 8 * (i / 2) + 2 * t + i % 2;
      if (position < first || position >= past) value[i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u;
    }
  }
};

// A total of this thread's rows to its place, for other blocks.
__device__ __forceinline__ void leave(float* partial, const Total& total, int count, const Reader& reader) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int query = reader.g + 8 * row;
    if (query >= count) continue;
    float* const at = partial + query * attention_partial_floats;
    *reinterpret_cast<float2*>(at + 8 * reader.warp + 2 * reader.t) =
        make_float2(total.o[2 * row], total.o[2 * row + 1]);
    if (reader.warp > 0) continue;
    at[kv_head_dim + reader.t] = total.l[row];
    if (reader.t == 0) at[kv_head_dim + 4] = total.m[row];
  }
}

__device__ __forceinline__ void put_out(const Tile& tile, const Total& total, const Reader& reader) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float l = total.l[row];
    l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
    l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
    const int query = reader.g + 8 * row;
    if (query >= tile.count) continue;
    *reinterpret_cast<std::uint32_t*>(tile.out(query, 8 * reader.warp + 2 * reader.t)) =
        ptx::pack_bf16x2(total.o[2 * row] / l, total.o[2 * row + 1] / l);
  }
}

// What a block has of a pair that others have splits of: splits [begin, end), counted from the pair's first.
struct Share {
  Pair pair;
  int begin, end;
  bool counted;  // it is the block's first pair too

  __device__ bool is_cut() const { return !counted && count() < pair.splits(); }
  // The queries that it ends: each split has as many as its place among them.
  __device__ int first_query() const { return query_at(begin); }
  __device__ int past_query() const { return query_at(end); }
  __device__ int query_at(int split) const {
    return (split * pair.tile.count + pair.splits() - 1) / pair.splits();
  }
  __device__ int count() const { return end - begin; }
};

// By one thread, when the block has left all its totals. The counter has in its low half the splits that are
// there, in its high half those of blocks that read no more; at its last it is 0 again.
__device__ __forceinline__ void count_arrival(const Work& work, const Share& share, std::uint32_t by) {
  const std::uint32_t all = static_cast<std::uint32_t>(share.pair.splits()) * 0x10001u;
  if (ptx::add_acquire_release(work.arrived(share.pair), by) + by == all) *work.arrived(share.pair) = 0;
}

// Queries [first, past) of a pair, at most rows_once, from what all blocks have left of it.
__device__ __forceinline__ void end_queries(const Work& work, const Pair& pair, int first, int past,
                                            FewShared& shared, const Reader& reader) {
  const int front_end = work.begin_of(work.block_of(pair.unit) + 1) - pair.unit + pair.first;
  // The front's total stands with the first split, and comes first; then the splits behind the front.
  const int skipped = attention_split_of(front_end - 1) - pair.first_split();
  const int totals = pair.splits() - skipped, rows = past - first;
  const int once = static_cast<int>(sizeof shared.ring) / (rows * attention_partial_floats * 4);
  float4* const staged = reinterpret_cast<float4*>(shared.ring);
  const int row = reader.thread / total_quads, quad = reader.thread % total_quads;
  float m = attention_nothing;
  float4 sums = make_float4(0, 0, 0, 0);
  for (int begin = 0; begin < totals; begin += once) {
    const int count = min(once, totals - begin);
    await_readers();  // what was staged before has been read
    for (int i = reader.thread; i < count * rows * partial_quads; i += readers) {
      const int total = begin + i / (rows * partial_quads);
      const float* const from = work.partial(pair, total == 0 ? 0 : total + skipped);
      staged[i] = __ldcg(reinterpret_cast<const float4*>(from + first * attention_partial_floats) +
                         i % (rows * partial_quads));
    }
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
    shared.largest[row][0] = __fadd_rn(__fadd_rn(sums.x, sums.y), __fadd_rn(sums.z, sums.w));
  await_readers();  // every query's l is there
  if (row < rows && quad < total_quads - 1) {
    const float l = shared.largest[row][0];
    *reinterpret_cast<uint2*>(pair.tile.out(first + row, 4 * quad)) =
        make_uint2(ptx::pack_bf16x2(sums.x / l, sums.y / l), ptx::pack_bf16x2(sums.z / l, sums.w / l));
  }
  await_readers();  // l has been read
}

__device__ __forceinline__ void end_share(const Work& work, const Share& share, FewShared& shared,
                                          const Reader& reader) {
  const int first = share.first_query(), past = share.past_query();
  if (first == past) return;
  if (reader.thread == 0) {
    const auto all = static_cast<std::uint32_t>(share.pair.splits());
    while ((ptx::load_acquire(work.arrived(share.pair)) & 0xffffu) != all) {
    }
  }
  await_readers();  // all that was left is there
  for (int begin = first; begin < past; begin += rows_once)
    end_queries(work, share.pair, begin, min(begin + rows_once, past), shared, reader);
  if (reader.thread == 0) count_arrival(work, share, static_cast<std::uint32_t>(share.count()) << 16);
}

__device__ __forceinline__ void read(const Work& work, int begin, int end, const Ring& ring,
                                     FewShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const Reader reader{thread, ptx::warp_of_block(), lane, lane / 4, lane % 4};
  unsigned at = 0;
  int next = begin;
  while (next < end) {
    const Pair pair = work.pair_of(next);
    const Tile& tile = pair.tile;
    const int first = pair.first + next - pair.unit, past = min(pair.past, first + end - next);
    const bool front = first == pair.first;
    const TileQueries q(tile.queries(reader.g), tile.queries(reader.g + 8), reader.t);
    const Step step{shared,
                    ring,
                    tile,
                    q,
                    {tile.sight(reader.g), tile.sight(reader.g + 8)},
                    __fmul_rn(work.args.scale, log2_e)};
    Total total{};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      total.m[row] = tile.sink_exponent(reader.g + 8 * row);
      total.l[row] = reader.t == 0 ? tile.sink_weight(reader.g + 8 * row) : 0;
    }
    for (int i = first; i < past;) {
      const int split = attention_split_of(i), split_past = min(attention_split_begin(split + 1), past);
      Total of_split{{attention_nothing, attention_nothing}, {}, {}};
      for (; i < split_past; ++i) step.run(of_split, i, at, reader);
      if (front) {
        total.take_in_all(of_split);
      } else {
        leave(work.partial(pair, split - pair.first_split()), of_split, tile.count, reader);
      }
    }
    if (front && past == pair.past) {
      put_out(tile, total, reader);
    } else if (front) {
      leave(work.partial(pair, 0), total, tile.count, reader);
    }
    next += past - first;
  }
  // At most the first pair and the last one are cut.
  const auto share_of = [&](int i) {
    const Pair pair = work.pair_of(i == 0 ? begin : end - 1);
    const int first = max(begin - pair.unit, 0) + pair.first,
              past = min(end - pair.unit + pair.first, pair.past);
    return Share{pair, attention_split_of(first) - pair.first_split(),
                 attention_split_of(past - 1) + 1 - pair.first_split(), i == 1 && pair.unit <= begin};
  };
  await_readers();  // the counts below speak for every reader's totals
#pragma unroll 1
  for (int i = 0; thread == 0 && i < 2; ++i) {
    const Share share = share_of(i);
    if (!share.is_cut()) continue;
    const bool reads = share.first_query() < share.past_query();
    count_arrival(work, share, static_cast<std::uint32_t>(share.count()) * (reads ? 1 : 0x10001u));
  }
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const Share share = share_of(i);
    if (share.is_cut()) end_share(work, share, shared, reader);
  }
}

__global__ void __launch_bounds__(few_threads, 1)
    sm90_attention_few(const __grid_constant__ AttentionCudaArgs args) {
  FewShared& shared = *reinterpret_cast<FewShared*>(ptx::dynamic_shared());
  const Ring ring{shared.ring, shared.full, shared.empty};
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  if (threadIdx.x == 0) ring.init();
  Work work{args, shared.before, args.heads / args.cache.kv_heads, 0};
  add_up_units<few_threads>(shared.before, args.sequence_count, [&](int index) -> long long {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0 || !has_few_rows(sequence, work.group)) return 0;
    const Tile tile = work.tile_of(index, 0);
    const int first = tile.first_step(), past = tile.past_step();
    const long long splits = attention_split_of(past - 1) + 1 - attention_split_of(first);
    return splits << 32 | (past - first);
  });
  work.units = static_cast<int>(shared.before[args.sequence_count]) * args.cache.kv_heads;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = work.begin_of(block), end = work.begin_of(block + 1);
  if (threadIdx.x < readers) {
    ptx::grid_dependency_wait();  // queries, and the last launch's use of the workspace
    if (begin < end) read(work, begin, end, ring, shared);
    return;
  }
  unsigned at = 0;
  bool waited = !args.settled;
  for (int next = begin; next < end;) {
    const Pair pair = work.pair_of(next);
    const int first = pair.first + next - pair.unit, past = min(pair.past, first + end - next);
    ring.fill(at, pair.tile, first, past, static_cast<int>(threadIdx.x) % 32, [&](int position) {
      if (waited || position <= pair.tile.sequence.first_position) return;
      ptx::grid_dependency_wait();  // these rows' own keys and values
      waited = true;
    });
    next += past - first;
  }
}

}  // namespace

void launch_attention_few(const AttentionCudaArgs& args, cudaStream_t stream) {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  cuda_check(cudaFuncSetAttribute(sm90_attention_few, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(FewShared))));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors)),
                 .threads = few_threads,
                 .shared_bytes = sizeof(FewShared),
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_few, args);
}

}  // namespace nibble
