// What blocks of latent attention take, listed by one block for each launch of a step. A sequence's tiles are
// counted and written by one thread.
#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int work_threads = 256, work_warps = work_threads / 32;

// A sequence's rows in a launch.
struct Rows {
  int first = 0, count = 0;  // numbered from the launch's first on
  int shift = 0;             // from there to positions
  int pages_at = 0;

  __device__ __forceinline__ Rows(const LatentWorkCudaArgs& args, int launch, int index) {
    if (index >= args.sequence_count) return;
    const SequenceCuda sequence = args.sequences[index];
    const int begin = launch * args.rows_at_once, end = min(begin + args.rows_at_once, args.rows);
    const int from = max(sequence.row_begin, begin), past = min(sequence.row_begin + sequence.row_count, end);
    first = from - begin;
    count = max(past - from, 0);
    shift = sequence.first_position - sequence.row_begin + begin;
    pages_at = sequence.pages_at;
  }
};

struct Tiles {
  int heads, most;  // most: queries of a tile

  __device__ __forceinline__ int count(const Rows& rows) const {
    return (rows.count * heads + most - 1) / most;
  }
  // Without what a launch numbers: `index` of them.
  __device__ __forceinline__ LatentItem at(const Rows& rows, int index) const {
    const int first = rows.first * heads + index * most;
    const LatentItem item{.query = first,
                          .count = min(most, (rows.first + rows.count) * heads - first),
                          .shift = rows.shift,
                          .pages_at = rows.pages_at,
                          .split_begin = 0,
                          .split_end = 0,
                          .partial = -1,
                          .splits = 0};
    const int splits = latent_split_of(last(item)) + 1;
    LatentItem whole = item;
    whole.split_end = whole.splits = splits;
    return whole;
  }
  // The position of its last query.
  __device__ __forceinline__ int last(const LatentItem& item) const {
    return (item.query + item.count - 1) / heads + item.shift;
  }
  // How many splits have all the steps that splits can have; they lie behind the early ones.
  __device__ __forceinline__ int long_splits(const LatentItem& item) const {
    const bool ends_whole = latent_split_begin(item.splits) <= last(item) / latent_step + 1;
    return max(item.splits - latent_early_splits - (ends_whole ? 0 : 1), 0);
  }
};

// What a thread's tiles come to.
struct Counts {
  int long_items = 0, short_items = 0, cut_tiles = 0, partials = 0;

  __device__ __forceinline__ Counts(const Tiles& tiles, const Rows& rows, bool cuts) {
    const int count = tiles.count(rows);
    if (!cuts) {
      short_items = count;
      return;
    }
    for (int i = 0; i < count; ++i) {
      const LatentItem item = tiles.at(rows, i);
      const int of_tile = tiles.long_splits(item);
      long_items += of_tile;
      short_items += item.splits - of_tile;
      if (item.splits == 1) continue;
      ++cut_tiles;
      partials += item.splits * item.count;
    }
  }
};

// Sums of all threads' numbers before this one's, and of all.
struct Before {
  int own, all;
};
__device__ __forceinline__ Before sums_before(int number, int (&of_warps)[work_warps]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int up = number;
  for (int by = 1; by < 32; by *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, up, by);
    if (lane >= by) up += below;
  }
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warps[thread / 32] = up;
  __syncthreads();
  Before before{up - number, 0};
  for (int warp = 0; warp < work_warps; ++warp) {
    if (warp < thread / 32) before.own += of_warps[warp];
    before.all += of_warps[warp];
  }
  return before;
}

__global__ void __launch_bounds__(work_threads)
    list_latent_work(const __grid_constant__ LatentWorkCudaArgs args, int processors) {
  __shared__ int of_warps[work_warps];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int launch = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int rows_of_launch = min(args.rows_at_once, args.rows - launch * args.rows_at_once);
  std::uint8_t* const work =
      args.work + launch * latent_work_bytes(args.rows_at_once, args.sequence_count, args.heads);
  LatentItem* const items = reinterpret_cast<LatentItem*>(work + sizeof(LatentWorkHeader));
  LatentItem* const cut_tiles = items + latent_most_items(args.rows_at_once, args.sequence_count, args.heads);
  const bool are_clusters = args.kernels.are_clusters(rows_of_launch, args.heads, processors);
  const Tiles tiles{args.heads, are_clusters ? latent_few_tile : static_cast<int>(latent_tile)};
  bool cuts = latent_cuts(rows_of_launch, args.heads, processors);
  int long_items = 0;
  if (cuts) {  // and there is room for what all splits find
    int short_items = 0, partials = 0;
    for (int index = 0; index < args.sequence_count; index += work_threads) {
      const Counts counts(tiles, Rows(args, launch, index + thread), true);
      long_items += sums_before(counts.long_items, of_warps).all;
      short_items += sums_before(counts.short_items, of_warps).all;
      partials += sums_before(counts.partials, of_warps).all;
    }
    cuts = long_items + short_items <= latent_most_partials && partials <= latent_partial_queries;
    if (!cuts) long_items = 0;
  }
  int long_done = 0, short_done = long_items, cut_done = 0, partials_done = 0;
  for (int index = 0; index < args.sequence_count; index += work_threads) {
    const Rows rows(args, launch, index + thread);
    const Counts counts(tiles, rows, cuts);
    const Before long_before = sums_before(counts.long_items, of_warps),
                 short_before = sums_before(counts.short_items, of_warps),
                 cut_before = sums_before(counts.cut_tiles, of_warps),
                 partials_before = sums_before(counts.partials, of_warps);
    LatentItem *next_long = items + long_done + long_before.own,
               *next_short = items + short_done + short_before.own,
               *next_cut = cut_tiles + cut_done + cut_before.own;
    int partial = partials_done + partials_before.own;
    const int count = tiles.count(rows);
    for (int i = 0; i < count; ++i) {
      LatentItem item = tiles.at(rows, i);
      if (!cuts || item.splits == 1) {
        *next_short++ = item;
        continue;
      }
      const int past_long = latent_early_splits + tiles.long_splits(item);
      item.partial = partial;
      *next_cut++ = item;
      for (int split = 0; split < item.splits; ++split, item.partial += item.count) {
        item.split_begin = split;
        item.split_end = split + 1;
        *(split >= latent_early_splits && split < past_long ? next_long++ : next_short++) = item;
      }
      partial = item.partial;
    }
    long_done += long_before.all;
    short_done += short_before.all;
    cut_done += cut_before.all;
    partials_done += partials_before.all;
  }
  if (thread == 0) *reinterpret_cast<LatentWorkHeader*>(work) = {short_done, cut_done};
}

}  // namespace

void latent_work_cuda(const LatentWorkCudaArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const int launches = (args.rows + args.rows_at_once - 1) / args.rows_at_once;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(launches)),
                 .threads = work_threads,
                 .stream = stream,
                 .overlaps = true},
                list_latent_work, args, processors_of_device());
}

}  // namespace nibble
