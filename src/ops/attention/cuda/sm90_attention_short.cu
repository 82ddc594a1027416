// paged_attention for few sequences of few rows that see little (decode): windows of up to a step, and whole
// contexts of up to 16 steps, each of which is a split. For the order of additions see attention_cuda.h.
//
// A block of eight warps takes two steps of a sequence's KV head at a time. In the first product each warp
// has 16 positions of a step, in the second 8 dimensions; keys and values go from memory straight into its
// registers, as operands, before the grids ahead have ended: all but the chunks with the sequence's new rows.
// So between a query's arrival and a step's sums there are two barriers, where warps exchange their largest
// scores and their weights. A window lies in two steps and is one block's. Of a whole context each block of a
// cluster has two steps, and sends what they sum up to the block that ends the query.
//
// Bytes: 256 a position and KV head in bfloat16, whole chunks. A launch is latency, much of it that of
// instructions that come from afar: so before its queries are there, each block does once what it will do
// with them, with other numbers (a decode step of gpt-oss-120b is 4 % longer without).
#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/attention/cuda/kv_operands.cuh"
#include "ops/ptx/cluster.cuh"

namespace nibble {
namespace {

constexpr int warps = attention_step / 16;
constexpr int short_threads = warps * 32;
constexpr int abreast = 2;  // steps
constexpr int queries_once = 8;
constexpr int cluster_blocks = 8;
static_assert(warps * 8 == kv_head_dim);
static_assert(cluster_blocks * abreast == attention_lone_steps && cluster_blocks == queries_once);

struct ShortShared {
  float largest[abreast][queries_once][warps];
  uint2 weights[abreast][warps][32];
  float4 sums[abreast][warps][queries_once];  // by lanes
};

// A warp of the block, a lane, and its place in operands: query g, columns 2t and 2t + 1.
struct Reader {
  int warp, lane, g, t;

  __device__ Reader() : warp(ptx::warp_of_block()), lane(static_cast<int>(threadIdx.x) % 32) {
    g = lane / 4;
    t = lane % 4;
  }
};

// What a warp has of a step: the keys of its 16 positions and 8 dimensions of all values, zero where the tile
// sees none of a chunk.
template <class Kv>
struct StepOperands {
  const Tile& tile;
  const Reader& reader;
  int begin = 0;      // the step's first position
  int chunk[2] = {};  // of each 64 positions, -1: not seen
  GroupOperand<Kv> key[2], value[2];

  // Where the step is; nothing of it is loaded.
  __device__ __forceinline__ void enter(int step) {
    begin = step * attention_step;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = begin + half * kv_chunk_slots;
      chunk[half] = at + kv_chunk_slots > tile.first() && at < tile.past() ? tile.chunk_of(at) : -1;
      key[half] = value[half] = {};
    }
  }

  // What has the sequence's new rows (own), or what has none.
  __device__ __forceinline__ void load(bool own) {
    const int key_chunk = reader.warp < warps / 2 ? chunk[0] : chunk[1];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int eight = 2 * reader.warp + n;
      if (key_chunk >= 0 && is_own(begin + 8 * (eight + 1)) == own)
        key[n].load_from_global(of_chunk(tile.args.cache.keys, key_chunk, eight % 8), reader.lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (chunk[half] >= 0 && is_own(begin + (half + 1) * kv_chunk_slots) == own)
        value[half].load_from_global(of_chunk(tile.args.cache.values, chunk[half], reader.warp), reader.lane);
    }
  }
  // Of what load brought with the same `own`. Weights are zero where the tile sees nothing, but zero times
  // what is no number is none.
  __device__ __forceinline__ void clear_unseen(bool own) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = begin + half * kv_chunk_slots;
      const int first = tile.first() - at, past = tile.past() - at;
      if (chunk[half] < 0 || is_own(at + kv_chunk_slots) != own) continue;
      if (first <= 0 && past >= kv_chunk_slots) continue;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int position = 8 * (i / 2) + 2 * reader.t + i % 2;
        if (position < first || position >= past) value[half].clear(i);
      }
    }
  }

  // Of positions 8n + 2t + e of the warp's: scores[n][e] of query g.
  __device__ __forceinline__ void multiply_keys(float (&scores)[2][4], const TileQueries& q) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (k == 0) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
        ptx::mma_m16n8k16_bf16(scores[n], q.step[k][0], 0, q.step[k][2], 0, key[n].pair(2 * k),
                               key[n].pair(2 * k + 1));
      }
    }
  }
  // Sixteen `k` of the step. Query g's, of dimensions 8 * warp + 2t and + 1, are the first two of o.
  __device__ __forceinline__ void multiply_values(float (&o)[4], const uint2 (&weights)[warps][32],
                                                  int k) const {
    const uint2 of_sixteen = weights[k][reader.lane];
    ptx::mma_m16n8k16_bf16(o, of_sixteen.x, 0, of_sixteen.y, 0, value[k / 4].pair(k % 4 * 2),
                           value[k / 4].pair(k % 4 * 2 + 1));
  }

 private:
  // Whether what ends with position `past` has new rows.
  __device__ __forceinline__ bool is_own(int past) const { return past > tile.sequence.first_position; }
  __device__ __forceinline__ static const std::uint8_t* of_chunk(const void* layer, int chunk, int group) {
    return static_cast<const std::uint8_t*>(layer) + static_cast<std::size_t>(chunk) * kv_chunk_bytes<Kv> +
           group * kv_group_bytes<Kv>;
  }
};

// The exponent of what a split has summed up with a step, and what all before it is multiplied by.
struct Weighed {
  float m, scale;
};

// Two steps side by side, for eight queries of a tile, of which `query` is this lane's.
template <class Kv>
struct TwoSteps {
  ShortShared& shared;
  const Reader& reader;
  StepOperands<Kv> low, high;
  int first, past;  // positions that query g sees, counted from the thread's first of step 0
  float exponents;  // a score's
  float scores[abreast][2][4];

  __device__ __forceinline__ TwoSteps(ShortShared& shared_, const Reader& reader_, const Tile& tile,
                                      int query)
      : shared(shared_), reader(reader_), low{tile, reader_}, high{tile, reader_} {
    const Sight sight = tile.sight(query);
    first = sight.first - 16 * reader.warp - 2 * reader.t;
    past = sight.past - 16 * reader.warp - 2 * reader.t;
    exponents = __fmul_rn(tile.args.scale, log2_e);
  }

  __device__ __forceinline__ void enter(int step) {
    low.enter(step);
    high.enter(step + 1);
  }
  // What was in memory before the kernel ahead began.
  __device__ __forceinline__ void load_settled() {
    low.load(false);
    high.load(false);
    low.clear_unseen(false);
    high.clear_unseen(false);
  }
  // The queries, once they are there; what may be loaded before them is on its way by then. A rehearsal takes
  // other memory: of the queries' own the first-level cache would keep what was there before they came.
  __device__ __forceinline__ TileQueries await_queries(const Bf16* of_query, bool rehearsal) {
    if (!rehearsal) {
      load_settled();
      ptx::grid_dependency_wait();  // queries, and the sequence's new rows
    }
    const Bf16* const from = rehearsal ? static_cast<const Bf16*>(low.tile.args.cache.keys) : of_query;
    return TileQueries(from, from, reader.t);
  }
  // The scores, the largest of which the block has when this returns.
  __device__ __forceinline__ void score(const TileQueries& q) {
    low.load(true);
    high.load(true);
    low.multiply_keys(scores[0], q);
    high.multiply_keys(scores[1], q);
    find_largest(low.begin, 0);
    find_largest(high.begin, 1);
    low.clear_unseen(true);
    high.clear_unseen(true);
    __syncthreads();  // the largest scores are there
  }
  __device__ __forceinline__ void find_largest(int begin, int of) {
    float(&s)[2][4] = scores[of];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = begin + i / 2 * 8 + i % 2;
      if (position < first || position >= past) s[i / 2][i % 2] = attention_nothing;
    }
    float largest = fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]));
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
    float weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = ptx::exp2_fast(fmaf(scores[of][i / 2][i % 2], exponents, -from));
    reinterpret_cast<float*>(&shared.sums[of][reader.warp][reader.g])[reader.t] =
        __fadd_rn(__fadd_rn(__fadd_rn(weights[0], weights[1]), weights[2]), weights[3]);
    shared.weights[of][reader.warp][reader.lane] =
        make_uint2(ptx::pack_bf16x2(weights[0], weights[1]), ptx::pack_bf16x2(weights[2], weights[3]));
    return {larger, power_of_two(__fsub_rn(m, larger))};
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
  __device__ __forceinline__ void multiply_both(float (&of_low)[4], float (&of_high)[4]) const {
#pragma unroll
    for (int k = 0; k < warps; ++k) {
      low.multiply_values(of_low, shared.weights[0], k);
      high.multiply_values(of_high, shared.weights[1], k);
    }
  }
};

// A total of query g: lane t's part of l, and dimensions 8 * warp + 2t and + 1.
using Total = QueryTotal<1>;

// To `out` in the lanes that have a query, unless it is a rehearsal.
__device__ __forceinline__ void put_out(std::uint8_t* out, const Total& total, bool stores) {
  float l = total.l;
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
  const float factor = 1.0f / l;
  const std::uint32_t words =
      ptx::pack_bf16x2(__fmul_rn(total.o[0][0], factor), __fmul_rn(total.o[0][1], factor));
  if (stores) *reinterpret_cast<std::uint32_t*>(out) = words;
}

// A tile's window for eight queries, from `from` on.
template <class Kv>
__device__ __forceinline__ void read_window(const Tile& tile, int from, ShortShared& shared,
                                            const Reader& reader) {
  const int query = from + reader.g, begin = tile.first_step(), past = tile.past_step();
  const Bf16* const of_query = tile.queries(query);
  std::uint8_t* const out = tile.out(query, 8 * reader.warp + 2 * reader.t);
  const Total nothing{attention_nothing, 0, {}};
  const Total sink{tile.sink_exponent(query), reader.t == 0 ? tile.sink_weight(query) : 0.0f, {}};
  TwoSteps<Kv> two(shared, reader, tile, query);
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    Total total = sink, split = nothing;
#pragma unroll 1
    for (int step = begin; step < past; step += abreast) {
      if (step > begin && attention_split_of(step) != attention_split_of(step - 1)) {
        total.take_in_all(split);
        split = nothing;
      }
      two.enter(step);
      const TileQueries q = two.await_queries(of_query, rehearsal != 0);
      two.score(q);
      const bool has_high = step + 1 < past;
      const bool apart = has_high && attention_split_of(step) != attention_split_of(step + 1);
      const Weighed low = two.weigh(split.m, 0), high = two.weigh(apart ? nothing.m : low.m, 1);
      __syncthreads();  // weights and their sums are there
      const float l = fmaf(split.l, low.scale, two.sum_of(0, reader.t)), l_high = two.sum_of(1, reader.t);
      float o[4] = {__fmul_rn(split.o[0][0], low.scale), __fmul_rn(split.o[0][1], low.scale)};
      if (apart) {
        float o_high[4] = {};
        two.multiply_both(o, o_high);
        total.take_in_all({low.m, l, {{o[0], o[1]}}});
        split = {high.m, l_high, {{o_high[0], o_high[1]}}};
        continue;
      }
#pragma unroll
      for (int k = 0; k < warps; ++k) two.low.multiply_values(o, shared.weights[0], k);
      split = {low.m, l, {{o[0], o[1]}}};
      if (!has_high) continue;
      o[0] = __fmul_rn(o[0], high.scale);
      o[1] = __fmul_rn(o[1], high.scale);
#pragma unroll
      for (int k = 0; k < warps; ++k) two.high.multiply_values(o, shared.weights[1], k);
      split = {high.m, fmaf(l, high.scale, l_high), {{o[0], o[1]}}};
    }
    total.take_in_all(split);
    put_out(out, total, rehearsal == 0 && query < tile.count);
  }
}

// The tile of a sequence's KV head, the launch's pair number `pair`; none: has no queries.
__device__ __forceinline__ Tile tile_of(const AttentionCudaArgs& args, int pair) {
  const int group_bits = group_bits_of(args);
  const SequenceCuda sequence = args.sequences[pair / args.cache.kv_heads];
  const bool has_few = has_few_rows(sequence, group_bits);
  return {args,       sequence, pair % args.cache.kv_heads,
          group_bits, 0,        has_few ? sequence.row_count << group_bits : 0};
}

template <class Kv>
__global__ void __launch_bounds__(short_threads, 2)
    sm90_attention_short_window(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ ShortShared shared;
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  const Tile tile = tile_of(args, static_cast<int>(blockIdx.x));
  // Who waits for this grid waits for the one before it.
  if (tile.count == 0 && blockIdx.x == 0) ptx::grid_dependency_wait();
  const Reader reader;
#pragma unroll 1
  for (int from = 0; from < tile.count; from += queries_once) read_window<Kv>(tile, from, shared, reader);
}

// What a split's sums of a query are on their way to the block that ends it: o, then l by lanes and m.
struct SentSplit {
  float4 o[kv_head_dim / 4], l, m;
};

constexpr int most_passes = attention_tile / queries_once + 1;  // with the rehearsal
struct WholeShared {
  ShortShared exchange;
  SentSplit sent[most_passes][attention_lone_steps];  // of the query that this block ends
};

// A block's part of a tile.
template <class Kv>
struct WholeTile {
  const Tile& tile;
  const Reader& reader;
  WholeShared& shared;
  std::uint64_t* arrived;  // [most_passes]
  int rank, splits;        // splits: of the tile

  // By one thread: what comes for the queries that this block ends.
  __device__ void expect() const {
    for (int pass = 0; pass < most_passes; ++pass) {
      ptx::mbarrier_init(&arrived[pass], 1);
      const int query = rank + max(pass - 1, 0) * queries_once;
      if (query < tile.count)
        ptx::mbarrier_arrive_expecting(&arrived[pass],
                                       static_cast<std::uint32_t>(splits * sizeof(SentSplit)));
    }
    ptx::fence_mbarrier_init();
  }

  // To the blocks that end eight queries, `left` of which there are: lane 2i's sums of the low step with its
  // neighbour's, lane 2i + 1's of the high one.
  __device__ __forceinline__ void send(const TwoSteps<Kv>& two, int pass, int left, const float (&m)[abreast],
                                       const float (&low)[4], const float (&high)[4]) const {
    const int of = reader.t % 2, split = abreast * rank + of;
    const float first = __shfl_xor_sync(0xffffffffu, of == 0 ? high[0] : low[0], 1);
    const float second = __shfl_xor_sync(0xffffffffu, of == 0 ? high[1] : low[1], 1);
    if (reader.g >= left || split >= splits) return;
    SentSplit& to = shared.sent[pass][split];
    ptx::store_to_block(
        &to.o[2 * reader.warp + reader.t / 2],
        of == 0 ? make_float4(low[0], low[1], first, second) : make_float4(first, second, high[0], high[1]),
        &arrived[pass], reader.g);
    if (reader.warp != 0) return;
    if (reader.t < 2) {
      ptx::store_to_block(
          &to.l, make_float4(two.sum_of(of, 0), two.sum_of(of, 1), two.sum_of(of, 2), two.sum_of(of, 3)),
          &arrived[pass], reader.g);
    } else {
      ptx::store_to_block(&to.m, make_float4(m[of], 0, 0, 0), &arrived[pass], reader.g);
    }
  }

  // By a warp: query `query` from all splits, of which a lane has two dimensions.
  __device__ __forceinline__ void end(int query, int pass, float sink_exponent, float sink_weight) const {
    ptx::mbarrier_wait(&arrived[pass], 0);
    float m = sink_exponent, o[2] = {}, l[4] = {sink_weight};
#pragma unroll 4
    for (int i = 0; i < splits; ++i) {
      const SentSplit& split = shared.sent[pass][i];
      const float2 two = reinterpret_cast<const float2*>(split.o)[reader.lane];
      const Scaling scaling = scaling_of(m, split.m.x);
      m = scaling.m;
      o[0] = take_in(o[0], two.x, scaling);
      o[1] = take_in(o[1], two.y, scaling);
      l[0] = take_in(l[0], split.l.x, scaling);
      l[1] = take_in(l[1], split.l.y, scaling);
      l[2] = take_in(l[2], split.l.z, scaling);
      l[3] = take_in(l[3], split.l.w, scaling);
    }
    const float factor = 1.0f / __fadd_rn(__fadd_rn(l[0], l[1]), __fadd_rn(l[2], l[3]));
    const std::uint32_t words = ptx::pack_bf16x2(__fmul_rn(o[0], factor), __fmul_rn(o[1], factor));
    std::uint8_t* const out = tile.out(query, 2 * reader.lane);
    if (pass > 0) *reinterpret_cast<std::uint32_t*>(out) = words;  // no rehearsal
  }

  __device__ __forceinline__ void read() const {
    const int first_step = tile.first_step() + abreast * rank;
    const bool has_steps = abreast * rank < splits;
    int pass = 0;
#pragma unroll 1
    for (int from = 0; from < tile.count; from += queries_once) {
      const int query = from + reader.g, left = tile.count - from, own = from + rank;
      const Bf16* const of_query = tile.queries(query);
      const float sink_exponent = tile.sink_exponent(own), sink_weight = tile.sink_weight(own);
      TwoSteps<Kv> two(shared.exchange, reader, tile, query);
      if (has_steps) two.enter(first_step);
#pragma unroll 1
      for (int rehearsal = from == 0; rehearsal >= 0; --rehearsal, ++pass) {
        if (has_steps) {
          const TileQueries q = two.await_queries(of_query, rehearsal != 0);
          two.score(q);
          const float m[abreast] = {two.weigh(attention_nothing, 0).m, two.weigh(attention_nothing, 1).m};
          __syncthreads();  // weights and their sums are there
          float low[4] = {}, high[4] = {};
          two.multiply_both(low, high);
          send(two, pass, left, m, low, high);
        }
        if (reader.warp == 0 && rank < left) end(own, pass, sink_exponent, sink_weight);
      }
    }
  }
};

template <class Kv>
__global__ void __launch_bounds__(short_threads, 2)
    sm90_attention_short_whole(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ std::uint64_t arrived[most_passes];
  WholeShared& shared = *reinterpret_cast<WholeShared*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  const Tile tile = tile_of(args, static_cast<int>(blockIdx.x) / cluster_blocks);
  if (tile.count == 0) {
    // Who waits for this grid waits for the one before it.
    if (blockIdx.x == 0) ptx::grid_dependency_wait();
    return;
  }
  const Reader reader;
  const WholeTile<Kv> whole{
      tile, reader, shared, arrived, ptx::cluster_rank(), tile.past_step() - tile.first_step()};
  if (threadIdx.x == 0) whole.expect();
  ptx::cluster_barrier();  // the other blocks' barriers are ready
  whole.read();
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  const bool in_clusters = !is_short_window(args.window);
  const int pairs = args.sequence_count * args.cache.kv_heads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(in_clusters ? pairs * cluster_blocks : pairs)),
                 .threads = short_threads,
                 .shared_bytes = in_clusters ? sizeof(WholeShared) : 0,
                 .stream = stream,
                 .overlaps = true,
                 .cluster = in_clusters ? cluster_blocks : 1,
                 .share = share_of_attention(args)},
                in_clusters ? sm90_attention_short_whole<Kv> : sm90_attention_short_window<Kv>, args);
}

}  // namespace

int shared_of_attention_short(int window) {
  return is_short_window(window) ? sizeof(ShortShared) : sizeof(WholeShared);
}

void launch_attention_short(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
