// Latent attention: a block a tile of queries, neighbours of one sequence over rows and heads, which share
// the vectors of each step.
//
// FLOPs: 2 x (576 + 512) a query and position; bytes: a position's vector once for every tile of its
// sequence, mostly from the second-level cache where heads are several tiles. Two warpgroups compute: each
// has the scores of every second step, and of all steps the sums of half of the latent's columns. So a step's
// vectors are read from shared memory as keys and as values, and each of both by one warpgroup alone; and
// while one takes exponentials, products of the other run: of the odd step's scores, and then of the even
// step's values. What is read for the last time makes room for the next step at once.
//
// A tile of several splits has its total in memory, of which a thread reads and writes its own part between
// splits.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/tile_shared.cuh"
#include "ops/latent_attention/cuda/latent_load.cuh"
#include "ops/ptx/warpgroup_registers.cuh"

namespace nibble {
namespace {

constexpr int step_sums = latent_step / 2, product_columns = 2 * group_columns,
              column_sums = product_columns / 2, products = side_groups * group_columns / product_columns;
// Barriers of those who compute, the first's of two: at which a step's weights are there for the other side,
// and for the side itself; and at which a split's are there for the other side. Sides do not share their
// code, and where some come to a barrier and wait, and others do elsewhere, synccheck takes them for threads
// that have gone astray; so one side comes to a barrier and the other waits there.
constexpr int weights_for_other = 2, weights_for_own = 4, split_for_other = 8, side_has_scores = 10;
static_assert(split_for_other >= side_has_written + sides);

// Of a thread's two queries.
struct Scalars {
  float level[2], weight[2];

  __device__ __forceinline__ Scalars() : level{latent_unseen, latent_unseen}, weight{0, 0} {}
};

// A warpgroup's part of a tile. A thread has queries 16 * warp + g and 8 behind it, and of every 8 positions
// or columns 2t and 2t + 1: the first query's two, then the second's.
template <int side>
struct Computing {
  const LatentParams& params;
  const LatentAttentionCudaArgs& args;
  LatentShared& shared;
  int warp, lane, g, t, groups;
  LatentItem item;
  int whole_steps;  // which all of the warp's queries see
  float o[products][column_sums];
  Scalars split;

  __device__ __forceinline__ Computing(const LatentParams& params_, LatentShared& shared_)
      : params(params_),
        args(params_.args),
        shared(shared_),
        warp(ptx::warp_of_block() % side_warps),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4),
        groups(latent_padded(params_.args.cache.width()) / group_columns) {
#pragma unroll
    for (int i = 0; i < products; ++i) {
#pragma unroll
      for (int j = 0; j < column_sums; ++j) o[i][j] = 0;
    }
  }

  __device__ __forceinline__ int query(int which) const { return 16 * warp + g + 8 * which; }
  // Columns of product i begin there.
  __device__ __forceinline__ int group_of(int i) const { return side * side_groups + 2 * i; }

  __device__ __forceinline__ void take(const LatentItem& next) {
    item = next;
    whole_steps = ((item.query + 16 * warp) / args.heads + item.shift + 1) / latent_step;
  }

  __device__ __forceinline__ void release(int of, int group) const {
    if (lane == 0 && (group < groups || group == weights_group))
      ptx::mbarrier_arrive(&shared.empty[of][group]);
  }

  // Of the side's step; under way when it returns.
  __device__ __forceinline__ void multiply_keys(float (&s)[step_sums], unsigned parity) const {
    const ptx::TileRows queries(shared.queries[0]), keys(shared.vectors[side][0]);
    ptx::wgmma_fence();
#pragma unroll 1
    for (int turn = 0; turn < groups; ++turn) {
      const int group = latent_group_at(turn, groups);
      ptx::mbarrier_wait(&shared.full[side][group], parity);
#pragma unroll
      for (int k = 0; k < group_columns / 16; ++k) {
        const auto at = static_cast<unsigned>(group * group_bytes + k * 32);
        ptx::wgmma_bf16(s, queries.at(at), keys.at(at), turn + k > 0);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void hide(float (&s)[step_sums], int step) const {
    if (step < whole_steps) return;
    int seen[2];  // behind the thread's first position
#pragma unroll
    for (int i = 0; i < 2; ++i)
      seen[i] = (item.query + query(i)) / args.heads + item.shift - step * latent_step - 2 * t;
#pragma unroll
    for (int i = 0; i < step_sums; ++i) {
      if (i / 4 * 8 + i % 2 > seen[i / 2 % 2]) s[i] = latent_unseen;
    }
  }

  // The scores of the side's step become weights, in shared memory too, and there for both sides. What o is
  // multiplied by before they are added goes to factors.
  __device__ __forceinline__ void weigh(float (&s)[step_sums], float (&factors)[2], unsigned parity) {
    float from[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float risen = ceilf(__fmul_rn(latent_largest(s, i), params.exponents)), before = split.level[i];
      const float level = risen <= before ? before : risen;
      factors[i] = latent_factor(before, level);
      from[i] = level == latent_unseen ? 0.0f : level;
      split.level[i] = level;
      if (t == 0) shared.levels[side][query(i)] = level;
    }
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < step_sums; ++i) {
      const int which = i / 2 % 2;
      s[i] = ptx::exp2_fast(fmaf(s[i], params.exponents, -from[which]));
      sum[which] = __fadd_rn(sum[which], s[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) split.weight[i] = fmaf(split.weight[i], factors[i], sum[i]);
    // The last weights have been read, and so have all warps of the side the keys that lie there.
    ptx::mbarrier_wait(&shared.empty[side][weights_group], parity ^ 1);
    ptx::named_barrier(side_has_scores + side, side_threads);
    // Of piece 0; piece i is at the same place but for those bits.
    const int place = ptx::held(latent_piece_at(query(0), 0) + t * 4);
#pragma unroll
    for (int i = 0; i < step_sums / 2; ++i) {
      std::uint8_t* const to = shared.vectors[side][weights_group] + (place ^ i / 2 * 16);
      *reinterpret_cast<std::uint32_t*>(to + i % 2 * ptx::swizzled_eight_bytes) =
          ptx::pack_bf16x2(s[2 * i], s[2 * i + 1]);
    }
    ptx::fence_shared_writes();
    ptx::named_barrier_arrive(weights_for_other + side, compute_threads);
    ptx::named_barrier(weights_for_own + side, side_threads);
  }

  // Waits for the other side's weights; as weigh, where they have changed levels.
  __device__ __forceinline__ void follow(float (&factors)[2]) {
    ptx::named_barrier(weights_for_other + 1 - side, compute_threads);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float level = shared.levels[1 - side][query(i)];
      factors[i] = latent_factor(split.level[i], level);
      split.weight[i] = __fmul_rn(split.weight[i], factors[i]);
      split.level[i] = level;
    }
  }

  // Factors are powers of two, mostly 1.
  __device__ __forceinline__ void scale(const float (&factors)[2]) {
    if (__ballot_sync(0xffffffffu, factors[0] != 1.0f || factors[1] != 1.0f) == 0) return;
#pragma unroll
    for (int i = 0; i < products; ++i) {
#pragma unroll
      for (int j = 0; j < column_sums; ++j) o[i][j] = __fmul_rn(o[i][j], factors[j / 2 % 2]);
    }
  }

  // Of a step of side `of`; under way when it returns. Columns past the latent's are of no use, and a branch
  // around them would cost more than they do.
  __device__ __forceinline__ void multiply_values(int of, bool add) {
    const ptx::TileRows weights(shared.vectors[of][weights_group]);
    const ptx::TileColumns values(shared.vectors[of][group_of(0)], group_bytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < products; ++i) {
#pragma unroll
      for (int k = 0; k < latent_step / 16; ++k) {
        ptx::wgmma_bf16(
            o[i], weights.at(static_cast<unsigned>(k * 32)),
            values.at(static_cast<unsigned>(2 * i * group_bytes + k * 2 * ptx::swizzled_eight_bytes)),
            add || k > 0);
      }
      ptx::wgmma_commit();
    }
  }
  __device__ __forceinline__ void await_values(int of) {
    static_assert(products == 2);
    ptx::wgmma_wait_but<1>(o[0]);
    release(of, group_of(0));
    release(of, group_of(0) + 1);
    ptx::wgmma_wait_all(o[1]);
    release(of, group_of(1));
    release(of, group_of(1) + 1);
    release(of, weights_group);
  }

  struct Ends {
    bool first = false, last = false;
  };

  // first: of the split. last: of the item, whose queries are not read again.
  __device__ __forceinline__ void take_two_steps(int step, unsigned parity, Ends ends) {
    float s[step_sums], factors[2];
    multiply_keys(s, parity);
    ptx::wgmma_wait_all(s);
    if (ends.last && lane == 0) ptx::mbarrier_arrive(&shared.queries_empty);
    hide(s, step + side);
    if constexpr (side == 0) {
      weigh(s, factors, parity);
      if (!ends.first) scale(factors);
      multiply_values(0, !ends.first);
      await_values(0);
      follow(factors);
      scale(factors);
    } else {
      float before[2];
      follow(before);
      if (!ends.first) scale(before);
      multiply_values(0, !ends.first);
      weigh(s, factors, parity);  // meanwhile
      await_values(0);
      scale(factors);
    }
    multiply_values(1, true);
    await_values(1);
  }

  // Weights of all lanes and both sides.
  __device__ __forceinline__ void end_split() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = split.weight[i];
#pragma unroll
      for (int apart = 1; apart <= 2; apart *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
      if (t == 0) shared.weights[side][query(i)] = sum;
    }
    ptx::named_barrier_arrive(split_for_other + side, compute_threads);
    ptx::named_barrier(split_for_other + 1 - side, compute_threads);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      split.weight[i] = __fadd_rn(shared.weights[0][query(i)], shared.weights[1][query(i)]);
  }

  // work(which, column, its sums) for each two neighbours of a thread's columns, counted from first_column
  // on; those past the latent's, up to a whole group, are zeros.
  template <class Work>
  __device__ __forceinline__ void for_each_pair(const Work& work) const {
    // From a register: conditions that hold for all items would be kept in some all the time.
    const int rank = ptx::held(args.cache.rank) - group_of(0) * group_columns, padded = latent_padded(rank);
#pragma unroll
    for (int i = 0; i < products; ++i) {
#pragma unroll
      for (int j = 0; j < column_sums; j += 2) {
        const int which = j / 2 % 2, column = i * product_columns + j / 4 * 8;
        if (query(which) >= item.count || column >= padded) continue;
        work(which, column, column < rank ? o[i][j] : 0.0f, column < rank ? o[i][j + 1] : 0.0f);
      }
    }
  }
  __device__ __forceinline__ int first_column() const { return group_of(0) * group_columns + 2 * t; }

  // The split's total to where it is joined with the others'.
  __device__ __forceinline__ void leave_partial() const {
    const int floats_of = latent_partial_floats_of(args.cache.rank), padded = latent_padded(args.cache.rank);
    float* const of_thread = args.partials + static_cast<std::size_t>(item.partial + query(0)) *
                                                 static_cast<std::size_t>(floats_of);
    float* const to[2] = {ptx::held(of_thread + first_column()),
                          ptx::held(of_thread + 8 * floats_of + first_column())};
    for_each_pair([&](int which, int column, float low, float high) {
      *reinterpret_cast<float2*>(to[which] + column) = make_float2(low, high);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (side == 0 && t == 0 && query(i) < item.count)
        *reinterpret_cast<float2*>(of_thread + 8 * i * floats_of + padded) =
            make_float2(split.level[i], split.weight[i]);
    }
  }

  // The split into its queries' totals, whose sums are in memory between splits, as threads have them; or,
  // if it is the last, in o.
  __device__ __forceinline__ void take_in(Scalars& total, Ends ends) {
    constexpr int at_once = 8, fours = products * column_sums / 4;
    float4* const kept = reinterpret_cast<float4*>(args.totals) +
                         static_cast<std::size_t>(blockIdx.x) * (fours * compute_threads) +
                         (static_cast<int>(threadIdx.x) - load_threads);
    float keeps[2], adds[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float most = split.level[i] <= total.level[i] ? total.level[i] : split.level[i];
      keeps[i] = latent_factor(total.level[i], most);
      adds[i] = latent_factor(split.level[i], most);
      total.weight[i] = latent_taken_in(total.weight[i], keeps[i], split.weight[i], adds[i]);
      total.level[i] = most;
    }
#pragma unroll
    for (int begin = 0; begin < fours; begin += at_once) {
      float4 before[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        before[i] = ends.first ? make_float4(0, 0, 0, 0) : kept[(begin + i) * compute_threads];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        constexpr int of_product = column_sums / 4;
        float* const sums = &o[(begin + i) / of_product][(begin + i) % of_product * 4];
        sums[0] = latent_taken_in(before[i].x, keeps[0], sums[0], adds[0]);
        sums[1] = latent_taken_in(before[i].y, keeps[0], sums[1], adds[0]);
        sums[2] = latent_taken_in(before[i].z, keeps[1], sums[2], adds[1]);
        sums[3] = latent_taken_in(before[i].w, keeps[1], sums[3], adds[1]);
        if (!ends.last) kept[(begin + i) * compute_threads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
  }

  __device__ __forceinline__ void store(const Scalars& total) const {
    const int padded = latent_padded(args.cache.rank);
    Bf16* const of_thread =
        args.out + static_cast<std::size_t>(item.query + query(0)) * static_cast<std::size_t>(padded) +
        first_column();
    Bf16* const to[2] = {ptx::held(of_thread), ptx::held(of_thread + 8 * padded)};
    for_each_pair([&](int which, int column, float low, float high) {
      *reinterpret_cast<std::uint32_t*>(to[which] + column) =
          ptx::pack_bf16x2(low / total.weight[which], high / total.weight[which]);
    });
  }

  __device__ __forceinline__ void run() {
    unsigned items = 0, steps = 0;
    for_each_latent_item(args.work, [&](const LatentItem& next) {
      take(next);
      const LatentSteps range(item, args.heads);
      ptx::mbarrier_wait(&shared.queries_full, items++ & 1);
      Scalars total;
      int step = range.begin;
#pragma unroll 1
      for (int of = item.split_begin; of < item.split_end; ++of) {
        split = Scalars();
        const int begin = step, end = min(latent_split_begin(of + 1), range.end);
#pragma unroll 1
        for (; step < end; step += sides)
          take_two_steps(step, steps++ & 1, {.first = step == begin, .last = step + sides >= range.end});
        end_split();
        if (item.partial >= 0) {
          leave_partial();
          break;
        }
        const bool final = of + 1 == item.split_end;
        take_in(total, {.first = of == item.split_begin, .last = final});
        if (final) store(total);
      }
    });
  }
};

template <class Element>
__global__ void __launch_bounds__(latent_threads, 1)
    latent_attention(const __grid_constant__ LatentParams params) {
  ptx::grid_launch_dependents();
  auto& shared = tile_shared<LatentShared>();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 1);
    ptx::mbarrier_init(&shared.queries_empty, sides * side_warps);
    for (int side = 0; side < sides; ++side) {
      for (int group = 0; group < most_groups; ++group) {
        ptx::mbarrier_init(&shared.full[side][group], 1);
        ptx::mbarrier_init(&shared.empty[side][group],
                           group == weights_group ? sides * side_warps : side_warps);
      }
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // barriers are there
  ptx::grid_dependency_wait();
  static_assert(sides * side_load_warps == side_warps);
  const int group = ptx::warp_of_block() / side_warps;
  if (group == 0) {
    ptx::keep_registers<40>();
    LatentLoad<Element>(params, shared).run();
  } else if (group == 1) {
    ptx::take_registers<232>();
    Computing<0>(params, shared).run();
  } else {
    ptx::take_registers<232>();
    Computing<1>(params, shared).run();
  }
}

constexpr int join_threads = 256;

// The totals of a tile's splits. A query has a warp, which reads its columns by and by; of clusters' tiles, a
// thread for each four of them.
template <int query_threads>
__global__ void __launch_bounds__(join_threads)
    join_latent_splits(const __grid_constant__ LatentAttentionCudaArgs args) {
  ptx::grid_launch_dependents();
  constexpr int queries = join_threads / query_threads;
  const int thread = static_cast<int>(threadIdx.x) % query_threads;
  const int query = static_cast<int>(blockIdx.y) * queries + static_cast<int>(threadIdx.x) / query_threads;
  const int padded = latent_padded(args.cache.rank), floats_of = latent_partial_floats_of(args.cache.rank);
  ptx::grid_dependency_wait();
  if (static_cast<int>(blockIdx.x) >= reinterpret_cast<const LatentWorkHeader*>(args.work)->cut_tiles) return;
  const auto behind_items = latent_most_items(args.rows_at_once, args.sequence_count, args.heads);
  const LatentItem item =
      reinterpret_cast<const LatentItem*>(args.work + sizeof(LatentWorkHeader))[behind_items + blockIdx.x];
  if (query >= item.count) return;
  const std::size_t apart = static_cast<std::size_t>(item.count) * static_cast<std::size_t>(floats_of);
  const float* const first =
      args.partials + static_cast<std::size_t>(item.partial + query) * static_cast<std::size_t>(floats_of);
  Bf16* const out =
      args.out + static_cast<std::size_t>(item.query + query) * static_cast<std::size_t>(padded);
  for (int column = thread * 4; column < padded; column += query_threads * 4) {
    float4 sum{};
    float level = latent_unseen, weight = 0;
#pragma unroll 4
    for (int split = 0; split < item.splits; ++split) {
      const float* const partial = first + static_cast<std::size_t>(split) * apart;
      const float4 of_split = *reinterpret_cast<const float4*>(partial + column);
      const float its_level = partial[padded], its_weight = partial[padded + 1];
      const float most = its_level <= level ? level : its_level;
      const float keeps = latent_factor(level, most), adds = latent_factor(its_level, most);
      weight = latent_taken_in(weight, keeps, its_weight, adds);
      sum.x = latent_taken_in(sum.x, keeps, of_split.x, adds);
      sum.y = latent_taken_in(sum.y, keeps, of_split.y, adds);
      sum.z = latent_taken_in(sum.z, keeps, of_split.z, adds);
      sum.w = latent_taken_in(sum.w, keeps, of_split.w, adds);
      level = most;
    }
    const bool real = column < args.cache.rank;
    *reinterpret_cast<uint2*>(out + column) =
        make_uint2(real ? ptx::pack_bf16x2(sum.x / weight, sum.y / weight) : 0,
                   real ? ptx::pack_bf16x2(sum.z / weight, sum.w / weight) : 0);
  }
}

// Of tiles of so many queries.
template <int query_threads>
void launch_join(const LatentAttentionCudaArgs& args, int tile, cudaStream_t stream) {
  const std::int64_t tiles = std::int64_t{args.rows} * ((args.heads + tile - 1) / tile) + args.sequence_count;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(tiles, latent_most_cut_tiles)),
                                static_cast<unsigned>(tile * query_threads / join_threads)),
                 .threads = join_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                join_latent_splits<query_threads>, args);
}

// A block an item, of whole tiles.
void launch_tiles(const LatentAttentionCudaArgs& args, float exponents, int processors, cudaStream_t stream) {
  const bool is_converted = args.cache.dtype == DType::f8_e4m3;
  const int width = args.cache.width();
  const LatentParams params{.args = args,
                            .exponents = exponents,
                            .q = ptx::swizzled_map(args.q, width, args.rows * args.heads),
                            .cache = is_converted
                                         ? ptx::TensorMap{}
                                         : ptx::swizzled_map(args.cache.vectors, width, args.cache.slots)};
  const auto kernel = is_converted ? latent_attention<E4m3> : latent_attention<Bf16>;
  constexpr std::size_t bytes = tile_shared_bytes<LatentShared>;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  const int most = static_cast<int>(latent_most_items(args.rows, args.sequence_count, args.heads));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(most, processors))),
                 .threads = latent_threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .share = shared_228_kb},
                kernel, params);
}

}  // namespace

bool latent_cuda_takes(int rank, int rotated) {
  return rank > 0 && rank % 16 == 0 && rank <= sides * side_groups * group_columns && rotated > 0 &&
         rotated % 16 == 0 && rank + rotated <= most_groups * group_columns;
}

Status latent_attention_cuda(const LatentAttentionCudaArgs& args, cudaStream_t stream) {
  if (!latent_cuda_takes(args.cache.rank, args.cache.rotated)) {
    return invalid_argument(
        "latents of " + std::to_string(args.cache.rank) + " and rotated keys of " +
        std::to_string(args.cache.rotated) +
        " dimensions have no kernel; it takes multiples of 16, up to 512 and 576 together");
  }
  if (args.page_size < latent_step || args.page_size % latent_step != 0)
    return invalid_argument("pages have whole steps of 64 positions, not " + std::to_string(args.page_size));
  if (args.rows == 0) return {};
  const int processors = processors_of_device();
  const float exponents = args.scale * 1.44269504f;
  const bool are_clusters = args.kernels.are_clusters(args.rows, args.heads, processors);
  are_clusters ? launch_latent_attention_few(args, exponents, processors, stream)
               : launch_tiles(args, exponents, processors, stream);
  if (!latent_cuts(args.rows, args.heads, processors)) return {};
  are_clusters ? launch_join<128>(args, latent_few_tile, stream)
               : launch_join<32>(args, tile_queries, stream);
  return {};
}

}  // namespace nibble
