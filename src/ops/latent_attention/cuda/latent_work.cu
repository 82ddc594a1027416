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
  int heads, tile;

  __device__ __forceinline__ int count(const Rows& rows) const {
    return (rows.count * heads + tile - 1) / tile;
  }
  // Without what a launch numbers: `index` of them.
  __device__ __forceinline__ LatentItem at(const Rows& rows, int index) const {
    const int first = rows.first * heads + index * tile;
    const int queries = min(tile, (rows.first + rows.count) * heads - first);
    const int last = (first + queries - 1) / heads + rows.shift, splits = latent_split_of(last) + 1;
    return {.query = first,
            .count = queries,
            .shift = rows.shift,
            .pages_at = rows.pages_at,
            .split_begin = 0,
            .split_end = splits,
            .partial = -1,
            .splits = splits};
  }
};

// What a thread's tiles come to.
struct Counts {
  int items = 0, cut_tiles = 0;

  __device__ __forceinline__ Counts(const Tiles& tiles, const Rows& rows, bool cuts) {
    const int count = tiles.count(rows);
    if (!cuts) {
      items = count;
      return;
    }
    for (int i = 0; i < count; ++i) {
      const int splits = tiles.at(rows, i).splits;
      items += splits;
      cut_tiles += splits > 1;
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
  const Tiles tiles{args.heads, latent_tile(args.heads)};
  bool cuts = latent_cuts(rows_of_launch, args.heads, processors);
  if (cuts) {  // and there is room for what all splits find
    int splits = 0;
    for (int index = 0; index < args.sequence_count; index += work_threads)
      splits += sums_before(Counts(tiles, Rows(args, launch, index + thread), true).items, of_warps).all;
    cuts = splits <= latent_most_partials;
  }
  int items_done = 0, cut_done = 0;
  for (int index = 0; index < args.sequence_count; index += work_threads) {
    const Rows rows(args, launch, index + thread);
    const Counts counts(tiles, rows, cuts);
    const Before before = sums_before(counts.items, of_warps),
                 cut_before = sums_before(counts.cut_tiles, of_warps);
    LatentItem* to = items + items_done + before.own;
    LatentItem* cut = cut_tiles + cut_done + cut_before.own;
    const int count = tiles.count(rows);
    for (int i = 0; i < count; ++i) {
      LatentItem item = tiles.at(rows, i);
      if (!cuts || item.splits == 1) {
        *to++ = item;
        continue;
      }
      item.partial = static_cast<int>(to - items);
      *cut++ = item;
      for (int split = 0; split < item.splits; ++split, ++item.partial) {
        item.split_begin = split;
        item.split_end = split + 1;
        *to++ = item;
      }
    }
    items_done += before.all;
    cut_done += cut_before.all;
  }
  if (thread == 0) *reinterpret_cast<LatentWorkHeader*>(work) = {items_done, cut_done};
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
