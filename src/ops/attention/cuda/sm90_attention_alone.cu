// paged_attention of one row of one sequence (decode) whose context is short, of heads of 64 or 128
// dimensions. For the order of additions see attention_cuda.h.
//
// Each block takes two steps (attention_two_steps.cuh), whose keys and values are on their way to its
// registers before its query is there. Each eight queries of a KV head have clusters of eight blocks. The
// first has the lone steps, each of which is a split. Its blocks send what they sum up to each other, for
// each of them ends a query. Two neighbours of a later cluster share a later split: the first hands its sums
// on to the second, which goes on from there, and leaves what the split has come to in memory. Warps of the
// ending blocks bring that near as it comes. A tile's other eight queries have clusters of their own: so its
// keys and values, which are few, come twice from the second-level cache, and nothing takes longer.
//
// Bytes: 256 a position and KV head in bfloat16 (of heads of 128: 512), whole chunks.
#include <algorithm>
#include <cstddef>

#include "ops/attention/cuda/attention_two_steps.cuh"
#include "ops/cuda/absent.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"

namespace nibble {
namespace {

using namespace few_steps;

constexpr int cluster_blocks = 8;
static_assert(cluster_blocks * abreast == attention_lone_steps && cluster_blocks == queries_once);
constexpr int split_blocks = attention_split_steps / abreast;  // of a later split
constexpr int cluster_splits = cluster_blocks / split_blocks;
static_assert(split_blocks == 2 && cluster_splits * attention_split_steps == attention_lone_steps);
constexpr int most_later = attention_most_later_clusters * cluster_splits;

// Eights of a KV head's queries.
__host__ __device__ constexpr int eights_of(int heads, int kv_heads) {
  return heads > queries_once * kv_heads ? 2 : 1;
}

// What a split's sums of a query are on their way to the block that ends it: o, for each lane of a warp the
// dimensions that it will have, then l by lanes and m.
template <int dims>
struct SentSplit {
  float4 o[dims / 4], l, m;
};
// The dimensions of a query that a lane has: 8i + 2t and + 1 of those that warp g of the others had.
template <int dims>
struct alignas(dims / 8) LaneSums {
  static constexpr int pairs = WarpPart<dims>::dim_eights;
  float o[pairs][2];
};

constexpr int passes = 2;  // the rehearsal, and what counts
template <int dims>
struct AloneShared {
  ShortShared<dims> exchange;
  union {
    // Of the query that this block ends: the rehearsal's lone splits, then all that count, of which the lone
    // ones end where the later ones begin.
    SentSplit<dims> sent[passes * attention_lone_steps + most_later];
    // What the block before has summed up of a later split: of each thread its o, m and l.
    float4 handed[passes][WarpPart<dims>::dim_eights / 2 + 1][short_threads];
  };
};

// As much of it as a launch needs.
template <int dims>
constexpr std::size_t shared_bytes(int later_clusters) {
  const std::size_t splits =
      static_cast<std::size_t>(passes * attention_lone_steps + later_clusters * cluster_splits);
  const std::size_t sent = splits * sizeof(SentSplit<dims>);
  const std::size_t handed = later_clusters > 0 ? sizeof(AloneShared<dims>::handed) : 0;
  return sizeof(ShortShared<dims>) + std::max(sent, handed);
}
static_assert(shared_bytes<64>(attention_most_later_clusters) <= sizeof(AloneShared<64>) &&
              shared_bytes<128>(attention_most_later_clusters) <= sizeof(AloneShared<128>));

// The splits that a tile sees. Later ones are counted from the first there can be.
template <bool has_later>
struct TileSplits {
  int first_step, lone, first_later = 0, later = 0;

  template <int dims>
  __device__ explicit TileSplits(const HeadTile<dims>& tile) : first_step(tile.first_step()) {
    const int past_step = tile.past_step();
    lone = past_step - first_step;
    if constexpr (has_later) {
      lone = max(0, min(past_step, attention_lone_steps) - first_step);
      first_later = max(0, attention_split_of(first_step) - attention_lone_steps);
      later = max(0, attention_split_of(past_step - 1) + 1 - attention_lone_steps) - first_later;
    }
  }
};

// Where a later split's sums of a query are left: o as LaneSums lie, l by lanes, m.
template <int dims>
__device__ __forceinline__ float* left_of(const HeadTile<dims>& tile, int later, int query) {
  const int at = (tile.kv_head * tile.args.max_splits + later) * attention_tile + query;
  return tile.args.workspace.partials + static_cast<std::size_t>(at) * attention_partial_floats_of(dims);
}

// A block of the first cluster, for eight of a tile's queries, from `from` on. Where there are no later
// clusters there is no code for them either: it would come from afar.
template <class Kv, int dims, bool has_later>
struct LoneSteps {
  using Part = WarpPart<dims>;
  using Sums = LaneSums<dims>;
  static constexpr int dim_eights = Part::dim_eights;
  const HeadTile<dims>& tile;
  const Reader& reader;
  AloneShared<dims>& shared;
  std::uint64_t* arrived;  // [passes]
  int from, rank;
  TileSplits<has_later> splits{tile};

  __device__ int left() const { return tile.count - from; }
  __device__ SentSplit<dims>* sent(int pass) const {
    if constexpr (!has_later) return shared.sent + pass * attention_lone_steps;
    return shared.sent + (pass == 0 ? 0 : 2 * attention_lone_steps - splits.lone);
  }

  // By one thread: what comes for the query that this block ends. Each later split is an arrival of its own.
  __device__ void expect() const {
    for (int pass = 0; pass < passes; ++pass) {
      ptx::mbarrier_init(&arrived[pass], static_cast<std::uint32_t>(1 + (pass == 0 ? 0 : splits.later)));
      if (rank < left())
        ptx::mbarrier_arrive_expecting(&arrived[pass],
                                       static_cast<std::uint32_t>(splits.lone * sizeof(SentSplit<dims>)));
    }
    ptx::fence_mbarrier_init();
  }

  // To the blocks that end the queries.
  __device__ __forceinline__ void send(const TwoSteps<Kv, dims>& two, int pass, const float (&m)[abreast],
                                       const float (&low)[dim_eights][4],
                                       const float (&high)[dim_eights][4]) const {
    SentSplit<dims>* const to = sent(pass) + abreast * rank;
    const int of = reader.t % 2;
    const bool has_own = abreast * rank + of < splits.lone;
    if constexpr (dim_eights == 1) {
      // Lane 2i's sums of the low step with its neighbour's, lane 2i + 1's of the high one.
      const float first = __shfl_xor_sync(0xffffffffu, of == 0 ? high[0][0] : low[0][0], 1);
      const float second = __shfl_xor_sync(0xffffffffu, of == 0 ? high[0][1] : low[0][1], 1);
      if (reader.g >= left() || !has_own) return;
      ptx::store_to_block(&to[of].o[2 * reader.warp + reader.t / 2],
                          of == 0 ? make_float4(low[0][0], low[0][1], first, second)
                                  : make_float4(first, second, high[0][0], high[0][1]),
                          &arrived[pass], reader.g);
    } else {
      if (reader.g >= left()) return;
      const bool has_high = abreast * rank + 1 < splits.lone;
#pragma unroll
      for (int i = 0; i < dim_eights; i += 2) {
        const int at = (4 * reader.warp + reader.t) * (dim_eights / 2) + i / 2;
        ptx::store_to_block(&to[0].o[at], make_float4(low[i][0], low[i][1], low[i + 1][0], low[i + 1][1]),
                            &arrived[pass], reader.g);
        if (has_high)
          ptx::store_to_block(&to[1].o[at],
                              make_float4(high[i][0], high[i][1], high[i + 1][0], high[i + 1][1]),
                              &arrived[pass], reader.g);
      }
      if (!has_own) return;
    }
    if (reader.warp != 0) return;
    if (reader.t < 2) {
      ptx::store_to_block(
          &to[of].l, make_float4(two.sum_of(of, 0), two.sum_of(of, 1), two.sum_of(of, 2), two.sum_of(of, 3)),
          &arrived[pass], reader.g);
    } else {
      ptx::store_to_block(&to[of].m, make_float4(of == 0 ? m[0] : m[1], 0, 0, 0), &arrived[pass], reader.g);
    }
  }

  // By the warps that do not end the query: brings near what was left of it, a split a warp, whose place is
  // absent afterwards. A rehearsal waits for nothing.
  __device__ __forceinline__ void collect(int query, int pass) const {
#pragma unroll 1
    for (int i = reader.warp - 1; i < splits.later; i += warps - 1) {
      float* const from_place = left_of(tile, splits.first_later + i, query);
      float* const of_lane = from_place + reader.lane * 2 * dim_eights;
      float* const l_place = from_place + dims + reader.lane % 8;  // m behind it
      Sums sums;
      float l_or_m;
      for (unsigned polls = 0;; ++polls) {
        if (polls == ptx::give_up_polls) ptx::give_up(tile.args.workspace.stuck, Stuck::attention_totals);
        bool absent = false;
#pragma unroll
        for (int at = 0; at < dim_eights; ++at) {
          const float2 pair = ptx::load_relaxed(reinterpret_cast<const float2*>(of_lane) + at);
          absent = absent || is_absent(pair.x) || is_absent(pair.y);
          sums.o[at][0] = pair.x;
          sums.o[at][1] = pair.y;
        }
        l_or_m = ptx::load_relaxed(l_place);
        if (reader.lane < 5) absent = absent || is_absent(l_or_m);
        if (!absent || pass == 0) break;
      }
      SentSplit<dims>& to = shared.sent[2 * attention_lone_steps + i];
      reinterpret_cast<Sums*>(to.o)[reader.lane] = sums;
      if (reader.lane < 5) (reader.lane < 4 ? &to.l.x + reader.lane : &to.m.x)[0] = l_or_m;
      if (pass == 0) continue;
      const float nothing = absent_word();
#pragma unroll
      for (int at = 0; at < dim_eights; ++at)
        ptx::store_relaxed(reinterpret_cast<float2*>(of_lane) + at, make_float2(nothing, nothing));
      if (reader.lane < 5) ptx::store_relaxed(l_place, nothing);
      __syncwarp();  // all lanes' are there
      if (reader.lane == 0) ptx::mbarrier_arrive(&arrived[pass]);
    }
  }

  // By a warp: query `query` from all splits.
  __device__ __forceinline__ void end(int query, int pass) const {
    float m = tile.sink_exponent(query), l[4] = {tile.sink_weight(query)};
    ptx::mbarrier_wait(&arrived[pass], 0);
    const SentSplit<dims>* const of_query = sent(pass);
    const int count = splits.lone + (pass == 0 ? 0 : splits.later);
    Sums sums = {};
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const SentSplit<dims>& split = of_query[i];
      const Sums of_split = reinterpret_cast<const Sums*>(split.o)[reader.lane];
      const Scaling scaling = scaling_of(m, split.m.x);
      m = scaling.m;
#pragma unroll
      for (int at = 0; at < 2 * dim_eights; ++at)
        sums.o[at / 2][at % 2] = take_in(sums.o[at / 2][at % 2], of_split.o[at / 2][at % 2], scaling);
      l[0] = take_in(l[0], split.l.x, scaling);
      l[1] = take_in(l[1], split.l.y, scaling);
      l[2] = take_in(l[2], split.l.z, scaling);
      l[3] = take_in(l[3], split.l.w, scaling);
    }
    const float factor = 1.0f / __fadd_rn(__fadd_rn(l[0], l[1]), __fadd_rn(l[2], l[3]));
    std::uint8_t* const out = tile.out(query, 8 * dim_eights * reader.g + 2 * reader.t);
#pragma unroll
    for (int i = 0; i < dim_eights; ++i) {
      const std::uint32_t words =
          ptx::pack_bf16x2(__fmul_rn(sums.o[i][0], factor), __fmul_rn(sums.o[i][1], factor));
      // Eight columns further on are 128 bytes (token_offset).
      if (pass > 0) *reinterpret_cast<std::uint32_t*>(out + 128 * i) = words;  // no rehearsal
    }
  }

  __device__ __forceinline__ void read() const {
    const int query = from + reader.g;
    const bool has_steps = abreast * rank < splits.lone;
    const Bf16* const of_query = tile.queries(from + reader.warp);
    TwoSteps<Kv, dims> two(shared.exchange, reader, tile, query);
    if (has_steps) two.enter(splits.first_step + abreast * rank);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      if (has_steps) {
        two.hold_places();
        const EightQueries<dims> q = two.await_queries(of_query, pass == 0);
        two.score(q);
        const float m[abreast] = {two.weigh(attention_nothing, 0).m, two.weigh(attention_nothing, 1).m};
        __syncthreads();  // weights and their sums are there
        float low[dim_eights][4] = {}, high[dim_eights][4] = {};
        two.multiply_both(low, high);
        send(two, pass, m, low, high);
      }
      if (reader.warp == 0 && rank < left()) end(from + rank, pass);
      if constexpr (has_later) {
        if (reader.warp != 0 && rank < left()) collect(from + rank, pass);
      }
    }
  }
};

// A block of a later cluster: the first two or the last two steps of later split `later`.
template <class Kv, int dims>
struct LaterSteps {
  using Part = WarpPart<dims>;
  static constexpr int dim_eights = Part::dim_eights;
  using Total = QueryTotal<dim_eights>;
  static constexpr int handed_quads = dim_eights / 2 + 1;
  const HeadTile<dims>& tile;
  const Reader& reader;
  AloneShared<dims>& shared;
  std::uint64_t* arrived;  // [passes]: what the block before hands on
  int from, rank, later;
  bool last_two;
  int step = attention_split_begin(attention_lone_steps + later) + (last_two ? abreast : 0);

  // Of the tile's steps, has any.
  __device__ bool has_steps() const { return step < tile.past_step() && step + abreast > tile.first_step(); }
  // The split's first two steps are seen too, or its last two.
  __device__ bool goes_on() const { return last_two && step > tile.first_step() && has_steps(); }
  __device__ bool hands_on() const { return !last_two && step + abreast < tile.past_step(); }

  __device__ void expect() const {
    for (int pass = 0; pass < passes; ++pass) {
      ptx::mbarrier_init(&arrived[pass], 1);
      if (goes_on()) ptx::mbarrier_arrive_expecting(&arrived[pass], sizeof shared.handed[pass]);
    }
    ptx::fence_mbarrier_init();
  }

  // By each thread, its total to that of the next block.
  __device__ __forceinline__ void hand_on(const Total& total, int pass) const {
    float words[4 * handed_quads] = {};
#pragma unroll
    for (int i = 0; i < 2 * dim_eights; ++i) words[i] = total.o[i / 2][i % 2];
    words[2 * dim_eights] = total.m;
    words[2 * dim_eights + 1] = total.l;
#pragma unroll
    for (int i = 0; i < handed_quads; ++i)
      ptx::store_to_block(&shared.handed[pass][i][threadIdx.x],
                          make_float4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]),
                          &arrived[pass], rank + 1);
  }
  __device__ __forceinline__ Total handed(int pass) const {
    ptx::mbarrier_wait(&arrived[pass], 0);
    float words[4 * handed_quads];
#pragma unroll
    for (int i = 0; i < handed_quads; ++i) {
      const float4 four = shared.handed[pass][i][threadIdx.x];
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
    Total total{words[2 * dim_eights], words[2 * dim_eights + 1], {}};
#pragma unroll
    for (int i = 0; i < 2 * dim_eights; ++i) total.o[i / 2][i % 2] = words[i];
    return total;
  }
  // For the blocks that end the queries.
  __device__ __forceinline__ void leave(const Total& total) const {
    if (reader.g >= tile.count - from) return;
    float* const to = left_of(tile, later, from + reader.g);
    float2* const pairs = reinterpret_cast<float2*>(to) + (4 * reader.warp + reader.t) * dim_eights;
#pragma unroll
    for (int i = 0; i < dim_eights; ++i)
      ptx::store_relaxed(&pairs[i], make_float2(total.o[i][0], total.o[i][1]));
    if (reader.warp != 0) return;
    ptx::store_relaxed(to + dims + reader.t, total.l);
    if (reader.t == 0) ptx::store_relaxed(to + dims + 4, total.m);
  }

  // What the split has come to with this block's steps, l in warp 0 alone.
  __device__ __forceinline__ Total sum_up(const TwoSteps<Kv, dims>& two, Total total) const {
    const Weighed low = two.weigh(total.m, 0), high = two.weigh(low.m, 1);
    __syncthreads();  // weights and their sums are there
    float o[dim_eights][4] = {};
#pragma unroll
    for (int i = 0; i < 2 * dim_eights; ++i) o[i / 2][i % 2] = __fmul_rn(total.o[i / 2][i % 2], low.scale);
#pragma unroll
    for (int k = 0; k < Part::sixteens; ++k) two.low.multiply_values(o, shared.exchange.weights[0], k);
    total.m = low.m;
    if (reader.warp == 0) total.l = fmaf(total.l, low.scale, two.sum_of(0, reader.t));
    if (step + 1 < tile.past_step()) {
#pragma unroll
      for (int i = 0; i < 2 * dim_eights; ++i) o[i / 2][i % 2] = __fmul_rn(o[i / 2][i % 2], high.scale);
#pragma unroll
      for (int k = 0; k < Part::sixteens; ++k) two.high.multiply_values(o, shared.exchange.weights[1], k);
      total.m = high.m;
      if (reader.warp == 0) total.l = fmaf(total.l, high.scale, two.sum_of(1, reader.t));
    }
#pragma unroll
    for (int i = 0; i < 2 * dim_eights; ++i) total.o[i / 2][i % 2] = o[i / 2][i % 2];
    return total;
  }

  __device__ __forceinline__ void read() const {
    const Bf16* const of_query = tile.queries(from + reader.warp);
    TwoSteps<Kv, dims> two(shared.exchange, reader, tile, from + reader.g);
    two.enter(step);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      two.hold_places();
      const EightQueries<dims> q = two.await_queries(of_query, pass == 0);
      two.score(q);
      const Total total = sum_up(two, goes_on() ? handed(pass) : Total{attention_nothing, 0, {}});
      if (hands_on()) {
        hand_on(total, pass);
      } else if (pass > 0) {
        leave(total);
      }
    }
  }
};

template <class Kv, int dims, bool has_later>
__global__ void __launch_bounds__(short_threads, 2)
    sm90_attention_alone(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ std::uint64_t arrived[passes];
  AloneShared<dims>& shared = *reinterpret_cast<AloneShared<dims>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  const HeadTile<dims> tile = tile_of<dims>(args, static_cast<int>(blockIdx.x) / cluster_blocks);
  const int row = static_cast<int>(blockIdx.y), rank = ptx::cluster_rank();
  const int second_eight = has_later ? eights_of(args.heads, args.cache.kv_heads) - 1 : 1;
  const int from = (row & second_eight) * queries_once;
  // Later clusters, which wait for no other, come first in the grid.
  const int later_cluster = row >> second_eight;
  if (tile.count <= from) {
    // Who waits for this grid waits for the one before it.
    if (blockIdx.x == 0 && blockIdx.y == 0) ptx::grid_dependency_wait();
    return;
  }
  const Reader reader;
  if (!has_later || later_cluster == args.later_clusters) {
    const LoneSteps<Kv, dims, has_later> of_block{tile, reader, shared, arrived, from, rank};
    if (threadIdx.x == 0) of_block.expect();
    ptx::cluster_barrier();  // the other blocks' barriers are ready
    of_block.read();
    return;
  }
  if constexpr (has_later) {
    const int first_later = later_cluster * cluster_splits;
    if (attention_split_begin(attention_lone_steps + first_later) >= tile.past_step()) return;
    const LaterSteps<Kv, dims> of_block{tile,
                                        reader,
                                        shared,
                                        arrived,
                                        from,
                                        rank,
                                        first_later + rank / split_blocks,
                                        rank % split_blocks != 0};
    if (threadIdx.x == 0) of_block.expect();
    ptx::cluster_barrier();  // likewise
    if (of_block.has_steps()) of_block.read();
  }
}

template <class Kv, int dims>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  const int pairs = args.sequence_count * args.cache.kv_heads;
  const int clusters = eights_of(args.heads, args.cache.kv_heads) * (args.later_clusters + 1);
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>(pairs * cluster_blocks), static_cast<unsigned>(clusters)),
       .threads = short_threads,
       .shared_bytes = shared_bytes<dims>(args.later_clusters),
       .stream = stream,
       .overlaps = true,
       .cluster = cluster_blocks,
       .share = share_of_attention(args)},
      args.later_clusters > 0 ? sm90_attention_alone<Kv, dims, true> : sm90_attention_alone<Kv, dims, false>,
      args);
}

}  // namespace

int shared_of_attention_alone(int head_dim, int later_clusters) {
  return static_cast<int>(head_dim == kv_head_dim ? shared_bytes<kv_head_dim>(later_clusters)
                                                  : shared_bytes<128>(later_clusters));
}

void launch_attention_alone(const AttentionCudaArgs& args, cudaStream_t stream) {
  const bool e4m3 = args.cache.dtype == KvE4m3::dtype;
  if (args.cache.head_dim == kv_head_dim) {
    e4m3 ? launch<KvE4m3, kv_head_dim>(args, stream) : launch<KvBf16, kv_head_dim>(args, stream);
  } else {
    e4m3 ? launch<KvE4m3, 128>(args, stream) : launch<KvBf16, 128>(args, stream);
  }
}

}  // namespace nibble
