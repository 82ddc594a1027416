// Latent attention: a block a tile of queries, neighbours of one sequence over rows and heads, which share
// the vectors of each step. While a step is computed the next one's vectors come. Blocks take tiles in turns.
//
// Bytes: a position's vector once for every tile of its sequence, mostly from the second-level cache where
// heads are several tiles; a tile of several splits has its total in memory, of which a thread reads and
// writes its own part between splits.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_tile.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int most_shared = 227 * 1024;

struct Params {
  LatentAttentionCudaArgs args;
  float exponents;  // scale * log2 e
};

NIBBLE_HOST_DEVICE constexpr int partial_floats(int rank) { return static_cast<int>(latent_partial(rank)); }

template <class Element, int sixteens>
struct TileOfQueries {
  static constexpr int tile = 16 * sixteens, parts = latent_warps / sixteens, eights = 8 / parts;
  static_assert(parts == latent_parts(tile));

  const Params& params;
  const LatentAttentionCudaArgs& args;
  LatentItem item;
  std::uint8_t* shared;
  LatentShared at;
  int width, groups, row_bytes, warp, lane, g, t;
  int sixteen, part;  // of the scores that the warp has
  int last;           // position of the tile's last query
  int own[2];         // positions of queries g and g + 8 of the warp's sixteen; -1 past the last
  float sums[sixteens][8][4];
  float weights[2];  // of queries g and g + 8 of the warp's sixteen, this lane's and part's

  __device__ __forceinline__ explicit TileOfQueries(const Params& params_)
      : params(params_),
        args(params_.args),
        shared(ptx::dynamic_shared()),
        at(tile, params_.args.cache.width()),
        width(params_.args.cache.width()),
        groups(latent_padded(width) / group_columns),
        row_bytes(groups * group_bytes),
        warp(ptx::warp_of_block()),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4),
        sixteen(warp / parts),
        part(warp % parts) {}

  __device__ __forceinline__ float* floats(int offset) const {
    return reinterpret_cast<float*>(shared + offset);
  }
  __device__ __forceinline__ int position_of(int query) const {
    return query < item.count ? (item.query + query) / args.heads + item.shift : -1;
  }
  __device__ __forceinline__ void take(const LatentItem& next) {
    item = next;
    last = position_of(item.count - 1);
    own[0] = position_of(16 * sixteen + g);
    own[1] = position_of(16 * sixteen + g + 8);
  }

  // What no copy writes, once.
  __device__ __forceinline__ void clear_columns() const {
    const int first = width / piece_columns, end = groups * 8;
    for (int row = warp; row < tile + 2 * latent_step; row += latent_warps)
      clear_latent_row(shared + at.queries + row * row_bytes, row, first, end);
  }

  __device__ __forceinline__ void fetch_queries() const {
    for (int row = warp; row < tile; row += latent_warps) {
      std::uint8_t* const to = shared + at.queries + row * row_bytes;
      if (row < item.count) {
        fetch_latent_row(
            to, row, args.q + static_cast<std::size_t>(item.query + row) * static_cast<std::size_t>(width),
            width);
      } else {
        clear_latent_row(to, row, 0, groups * 8);
      }
    }
  }

  // Rows behind the last query's position hold what nobody wrote: they count as zeros.
  __device__ __forceinline__ void fetch_step(int step) const {
    const int first = step * latent_step;
    const std::int32_t page = args.page_table[item.pages_at + first / args.page_size];
    const std::size_t slot = static_cast<std::size_t>(page) * static_cast<std::size_t>(args.page_size) +
                             static_cast<std::size_t>(first % args.page_size);
    const Element* const from =
        static_cast<const Element*>(args.cache.vectors) + slot * static_cast<std::size_t>(width);
    std::uint8_t* const to = shared + at.vectors + step % 2 * (latent_step * row_bytes);
#pragma unroll 1
    for (int row = warp; row < latent_step; row += latent_warps) {
      if (first + row <= last) {
        fetch_latent_row(to + row * row_bytes, row,
                         from + static_cast<std::size_t>(row) * static_cast<std::size_t>(width), width);
      } else {
        clear_latent_row(to + row * row_bytes, row, 0, groups * 8);
      }
    }
  }

  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;
    }
    weights[0] = weights[1] = 0;
  }

  // Scores of the step become weights in shared memory. `turn`: which of the levels are those so far.
  __device__ __forceinline__ void weigh(int step, int turn) {
    float scores[eights][4];
    const std::uint8_t* const vectors = shared + at.vectors + step % 2 * (latent_step * row_bytes);
    latent_scores<eights>(scores, shared + at.queries + 16 * sixteen * row_bytes,
                          vectors + part * (8 * eights) * row_bytes, groups);
    const int query = 16 * sixteen + g;
    float largest[2] = {__uint_as_float(latent_unseen), __uint_as_float(latent_unseen)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int seen = own[half] - step * latent_step - part * (8 * eights) - 2 * t;
#pragma unroll
      for (int i = 0; i < eights; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& score = scores[i][2 * half + k];
          if (8 * i + k > seen) score = __uint_as_float(latent_unseen);
          if (!(score <= largest[half])) largest[half] = score;
        }
      }
#pragma unroll
      for (int apart = 1; apart <= 2; apart *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest[half], apart);
        if (!(other <= largest[half])) largest[half] = other;
      }
      if (t == 0) floats(at.maxima)[part * tile + query + 8 * half] = largest[half];
    }
    __syncthreads();  // all parts' maxima are there, and the last step's weights have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_tile = query + 8 * half;
      float most = floats(at.maxima)[of_tile];
#pragma unroll
      for (int i = 1; i < parts; ++i) {
        const float other = floats(at.maxima)[i * tile + of_tile];
        if (!(other <= most)) most = other;
      }
      const float before = floats(at.levels)[turn * tile + of_tile];
      const float risen = ceilf(__fmul_rn(most, params.exponents));
      const float level = risen <= before ? before : risen;
      const float factor = latent_factor(before, level);
      const float from = level == __uint_as_float(latent_unseen) ? 0.0f : level;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < eights; ++i) {
        float weight[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          weight[k] = ptx::exp2_fast(fmaf(scores[i][2 * half + k], params.exponents, -from));
          sum = __fadd_rn(sum, weight[k]);
        }
        *reinterpret_cast<std::uint32_t*>(shared + at.weights + of_tile * group_bytes +
                                          ((part * eights + i) ^ g) * 16 + t * 4) =
            ptx::pack_bf16x2(weight[0], weight[1]);
      }
      weights[half] = fmaf(weights[half], factor, sum);
      if (part == 0 && t == 0) {
        floats(at.levels)[(turn ^ 1) * tile + of_tile] = level;
        floats(at.factors)[of_tile] = factor;
      }
    }
    __syncthreads();  // weights and factors are there
  }

  __device__ __forceinline__ bool has_columns() const { return warp * group_columns < args.cache.rank; }

  __device__ __forceinline__ void add(int step) {
    if (!has_columns()) return;
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
      const float upper = floats(at.factors)[16 * i + g], lower = floats(at.factors)[16 * i + g + 8];
      if (upper == 1.0f && lower == 1.0f) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[i][j][0] = __fmul_rn(sums[i][j][0], upper);
        sums[i][j][1] = __fmul_rn(sums[i][j][1], upper);
        sums[i][j][2] = __fmul_rn(sums[i][j][2], lower);
        sums[i][j][3] = __fmul_rn(sums[i][j][3], lower);
      }
    }
    latent_sums<sixteens>(sums, shared + at.weights,
                          shared + at.vectors + step % 2 * (latent_step * row_bytes) + warp * group_bytes,
                          row_bytes);
  }

  // Every part's weights of a split, for all queries.
  __device__ __forceinline__ void end_split() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = weights[half];
#pragma unroll
      for (int apart = 1; apart <= 2; apart *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
      if (t == 0) floats(at.sums)[part * tile + 16 * sixteen + g + 8 * half] = sum;
    }
    __syncthreads();
  }
  __device__ __forceinline__ float weight_of(int query) const {
    float sum = floats(at.sums)[query];
#pragma unroll
    for (int i = 1; i < parts; ++i) sum = __fadd_rn(sum, floats(at.sums)[i * tile + query]);
    return sum;
  }

  // work(query, first column, i, half) for the two runs of eight columns that a lane has of each of its
  // queries; sums[i][j][2 * half + run] is column j of a run.
  template <class Work>
  __device__ __forceinline__ void for_each_run(const Work& work) {
    if (!has_columns()) return;
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int run = 0; run < 2; ++run)
          work(16 * i + g + 8 * half, warp * group_columns + 16 * t + 8 * run, i, 2 * half + run);
      }
    }
  }

  // The split's total to where it is joined with the others'.
  __device__ __forceinline__ void leave_partial(int turn) {
    const int floats_of = partial_floats(args.cache.rank);
    float* const to = args.partials + static_cast<std::size_t>(item.partial) * tile * floats_of;
    for_each_run([&](int query, int column, int i, int at_run) {
      float* const of_run = to + query * floats_of + column;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        *reinterpret_cast<float4*>(of_run + j) = make_float4(sums[i][j][at_run], sums[i][j + 1][at_run],
                                                             sums[i][j + 2][at_run], sums[i][j + 3][at_run]);
      }
    });
    const int query = static_cast<int>(threadIdx.x);
    if (query < tile) {
      float* const of_query = to + query * floats_of + latent_padded(args.cache.rank);
      of_query[0] = floats(at.levels)[turn * tile + query];
      of_query[1] = weight_of(query);
    }
  }
};

// A thread's part of a total's sums between splits: in memory, or, of a tile of 32 queries, in registers.
template <int sixteens>
struct KeptSums {
  float4* own;

  __device__ __forceinline__ explicit KeptSums(float* totals)
      : own(reinterpret_cast<float4*>(totals) +
            static_cast<std::size_t>(blockIdx.x) * (sixteens * 8 * latent_threads) + threadIdx.x) {}
  __device__ __forceinline__ float4 at(int i, int j) const { return own[(i * 8 + j) * latent_threads]; }
  __device__ __forceinline__ void keep(int i, int j, const float4& sums) {
    own[(i * 8 + j) * latent_threads] = sums;
  }
};
template <>
struct KeptSums<2> {
  float4 own[2][8];

  __device__ __forceinline__ explicit KeptSums(float*) {}
  __device__ __forceinline__ float4 at(int i, int j) const { return own[i][j]; }
  __device__ __forceinline__ void keep(int i, int j, const float4& sums) { own[i][j] = sums; }
};

// A tile's total between splits, of which each thread has a part: sums in its own order, and of each of its
// queries the level and the weight, which all threads of a query compute alike.
template <class Element, int sixteens>
struct Total {
  using Tile = TileOfQueries<Element, sixteens>;
  float level[sixteens][2], weight[sixteens][2];

  __device__ __forceinline__ Total() {
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        level[i][half] = __uint_as_float(latent_unseen);
        weight[i][half] = 0;
      }
    }
  }

  // Takes the split in; the sums are then the total's. first: nothing has been kept yet.
  __device__ __forceinline__ void take_in(Tile& tile, int turn, const KeptSums<sixteens>& kept, bool first) {
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
      float keeps[2], adds[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = 16 * i + tile.g + 8 * half;
        const float of_split = tile.floats(tile.at.levels)[turn * Tile::tile + query];
        const float most = of_split <= level[i][half] ? level[i][half] : of_split;
        keeps[half] = latent_factor(level[i][half], most);
        adds[half] = latent_factor(of_split, most);
        weight[i][half] = latent_taken_in(weight[i][half], keeps[half], tile.weight_of(query), adds[half]);
        level[i][half] = most;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 before = first ? make_float4(0, 0, 0, 0) : kept.at(i, j);
        float(&sums)[4] = tile.sums[i][j];
        sums[0] = latent_taken_in(before.x, keeps[0], sums[0], adds[0]);
        sums[1] = latent_taken_in(before.y, keeps[0], sums[1], adds[0]);
        sums[2] = latent_taken_in(before.z, keeps[1], sums[2], adds[1]);
        sums[3] = latent_taken_in(before.w, keeps[1], sums[3], adds[1]);
      }
    }
  }
  __device__ __forceinline__ void keep(const Tile& tile, KeptSums<sixteens>& kept) const {
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float(&sums)[4] = tile.sums[i][j];
        kept.keep(i, j, make_float4(sums[0], sums[1], sums[2], sums[3]));
      }
    }
  }
  __device__ __forceinline__ void store(Tile& tile) const {
    const int padded = latent_padded(tile.args.cache.rank);
    tile.for_each_run([&](int query, int column, int i, int at_run) {
      if (query >= tile.item.count) return;
      const float of_query = weight[i][at_run / 2];
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float low = tile.sums[i][2 * j][at_run] / of_query,
                    high = tile.sums[i][2 * j + 1][at_run] / of_query;
        words[j] = column < tile.args.cache.rank ? ptx::pack_bf16x2(low, high) : 0;
      }
      *reinterpret_cast<uint4*>(
          tile.args.out +
          static_cast<std::size_t>(tile.item.query + query) * static_cast<std::size_t>(padded) + column) =
          make_uint4(words[0], words[1], words[2], words[3]);
    });
  }
};

template <class Element, int sixteens>
__global__ void __launch_bounds__(latent_threads, 1) latent_attention(const __grid_constant__ Params params) {
  using Tile = TileOfQueries<Element, sixteens>;
  ptx::grid_launch_dependents();
  Tile tile(params);
  tile.clear_columns();
  ptx::grid_dependency_wait();
  const LatentAttentionCudaArgs& args = params.args;
  const int items = reinterpret_cast<const LatentWorkHeader*>(args.work)->items;
  const auto* const listed = reinterpret_cast<const LatentItem*>(args.work + sizeof(LatentWorkHeader));
  KeptSums<sixteens> kept(args.totals);
  for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
    tile.take(listed[index]);
    __syncthreads();  // the item before has been read
    tile.fetch_queries();
    int step = latent_split_begin(tile.item.split_begin);
    const int steps = min(tile.last / latent_step + 1, latent_split_begin(tile.item.split_end));
    tile.fetch_step(step);
    Total<Element, sixteens> total;
    for (int split = tile.item.split_begin; split < tile.item.split_end; ++split) {
      tile.begin_split();
      int turn = 0;
      if (threadIdx.x < Tile::tile) tile.floats(tile.at.levels)[threadIdx.x] = __uint_as_float(latent_unseen);
      for (const int end = min(latent_split_begin(split + 1), steps); step < end; ++step, turn ^= 1) {
        ptx::await_copies_to_shared();
        __syncthreads();  // the step's vectors are there, and those before have been read
        if (step + 1 < steps) tile.fetch_step(step + 1);
        tile.weigh(step, turn);
        tile.add(step);
      }
      tile.end_split();
      if (tile.item.partial >= 0) {
        tile.leave_partial(turn);
        break;
      }
      const bool first = split == tile.item.split_begin, final = split + 1 == tile.item.split_end;
      total.take_in(tile, turn, kept, first);
      if (final) {
        total.store(tile);
      } else {
        total.keep(tile, kept);
      }
      __syncthreads();  // levels and weights of the split have been read
    }
  }
}

constexpr int join_threads = 256, join_warps = join_threads / 32, columns_at_once = 128;

// The totals of a tile's splits, a warp a query.
__global__ void __launch_bounds__(join_threads)
    join_latent_splits(const __grid_constant__ LatentAttentionCudaArgs args, int tile) {
  ptx::grid_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int query = static_cast<int>(blockIdx.y) * join_warps + warp;
  const int padded = latent_padded(args.cache.rank), floats_of = partial_floats(args.cache.rank);
  ptx::grid_dependency_wait();
  if (static_cast<int>(blockIdx.x) >= reinterpret_cast<const LatentWorkHeader*>(args.work)->cut_tiles) return;
  const auto behind_items = latent_most_items(args.rows_at_once, args.sequence_count, args.heads);
  const LatentItem item =
      reinterpret_cast<const LatentItem*>(args.work + sizeof(LatentWorkHeader))[behind_items + blockIdx.x];
  if (query >= item.count) return;
  const std::size_t apart = static_cast<std::size_t>(tile) * static_cast<std::size_t>(floats_of);
  const float* const first =
      args.partials + static_cast<std::size_t>(item.partial) * apart + query * floats_of;
  Bf16* const out =
      args.out + static_cast<std::size_t>(item.query + query) * static_cast<std::size_t>(padded);
  for (int column = lane * 4; column < padded; column += columns_at_once) {
    float4 sum{};
    float level = __uint_as_float(latent_unseen), weight = 0;
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

template <class Element>
auto kernel_of(int tile) {
  return tile == 32 ? latent_attention<Element, 2> : latent_attention<Element, 4>;
}

}  // namespace

bool latent_cuda_takes(int rank, int rotated) {
  return rank > 0 && rank % 16 == 0 && rank <= latent_warps * group_columns && rotated > 0 &&
         rotated % 16 == 0 && LatentShared(latent_tile(64), rank + rotated).all <= most_shared;
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
  const int tile = latent_tile(args.heads), processors = processors_of_device();
  const Params params{args, args.scale * 1.44269504f};
  const auto kernel = args.cache.dtype == DType::f8_e4m3 ? kernel_of<E4m3>(tile) : kernel_of<Bf16>(tile);
  const std::size_t bytes = static_cast<std::size_t>(LatentShared(tile, args.cache.width()).all);
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
  if (!latent_cuts(args.rows, args.heads, processors)) return {};
  const int tiles = args.rows * ((args.heads + tile - 1) / tile) + args.sequence_count;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(tiles, latent_most_cut_tiles)),
                                static_cast<unsigned>(tile / join_warps)),
                 .threads = join_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                join_latent_splits, args, tile);
  return {};
}

}  // namespace nibble
