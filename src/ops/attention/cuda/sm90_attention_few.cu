// paged_attention for sequences of few rows (decode): a block a split of 256 positions and KV head, a warp a
// chunk of 64. For the order of additions see attention_cuda.h.
//
// Bytes: 256 a position and KV head, 16.8 MB for gpt-oss at 8,192 positions (3.6 us at 4,650 GB/s); a split's
// partial results are 2.2 KB beside its 64 KB. FLOPs: 4 x 64 a query and position, with half of the tensor
// core's 16 rows used by the 8 heads of one row. A warp asks for its chunk's keys and values, 16 KB, straight
// into registers as operands, so that two blocks a multiprocessor have some 128 KB on their way.
//
// The block that comes last to a sequence's KV head takes in all of its splits, 32 at a time: their scalings
// follow from running maxima, which a warp finds together, and then each output's chain is two operations a
// split. No block waits for another.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/cuda/launch.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int warps = attention_split_chunks;
constexpr int few_threads = warps * 32;
constexpr int thread_dims = 8;     // of a query's output, that a thread puts together
constexpr int scalings_once = 32;  // splits
static_assert(attention_tile * kv_head_dim == few_threads * thread_dims);

struct FewShared {
  float o[warps][attention_tile][kv_head_dim + 4];           // chunks' results; rows apart by a few banks
  float m[warps][attention_tile], l[warps][attention_tile];  // l below 0: not seen
  float2 scalings[attention_tile][scalings_once];            // keep, add
  float running[attention_tile];
  int is_last;
};

// What a thread puts together: 8 dimensions of one query.
struct QueryTotal {
  float m, l, o[thread_dims];

  __device__ void take_in_scaled(float other_l, const float* other_o, const Scaling& scaling) {
    m = scaling.m;
    l = take_in(l, other_l, scaling);
#pragma unroll
    for (int d = 0; d < thread_dims; ++d) o[d] = take_in(o[d], other_o[d], scaling);
  }
};

__device__ __forceinline__ void put_out(const Tile& tile, int query, int first_dim, const QueryTotal& total) {
  std::uint32_t words[thread_dims / 2];
#pragma unroll
  for (int i = 0; i < thread_dims / 2; ++i)
    words[i] = ptx::pack_bf16x2(total.o[2 * i] / total.l, total.o[2 * i + 1] / total.l);
  *reinterpret_cast<uint4*>(tile.out(query, first_dim)) = make_uint4(words[0], words[1], words[2], words[3]);
}

// This warp's chunk into its place, for all queries of the tile.
__device__ __forceinline__ void run_chunk(const Tile& tile, const TileQueries& q, int chunk, int past,
                                          FewShared& shared, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  if (chunk >= past) {
    if (lane < attention_tile) shared.l[warp][lane] = -1;
    return;
  }
  TileTotal result;
  tile.attend<true>(result, q, chunk, lane);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int query = g + 8 * row;
    if (t == 0) {
      shared.m[warp][query] = result.m[row];
      shared.l[warp][query] = tile.sight(query).sees(chunk) ? result.l[row] : -1;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<float2*>(&shared.o[warp][query][8 * j + 2 * t]) =
          make_float2(result.o[j][2 * row], result.o[j][2 * row + 1]);
    }
  }
}

// All splits of a tile, whose partials begin at `partials`, into its outputs.
__device__ __forceinline__ void take_in_splits(const Tile& tile, const float* partials, std::size_t apart,
                                               int splits, FewShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int query = thread / (kv_head_dim / thread_dims), first_dim = thread % 8 * thread_dims;
  if (thread < attention_tile) shared.running[thread] = tile.sink(thread);
  QueryTotal total{.m = 0, .l = tile.sink_weight(), .o = {}};
  __syncthreads();  // the running maxima have begun
  for (int first = 0; first < splits; first += scalings_once) {
    for (int of = warp; of < tile.count; of += warps) {
      const float* at = partials + static_cast<std::size_t>(first + lane) * apart +
                        of * attention_partial_floats + kv_head_dim;
      const bool seen = first + lane < splits && !(__ldcg(at + 1) < 0);
      const float m = seen ? __ldcg(at) : attention_nothing;
      const float before_all = shared.running[of];
      float largest = fmaxf(m, before_all);
      for (int step = 1; step < 32; step *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, largest, step);
        if (lane >= step) largest = fmaxf(largest, left);
      }
      const float left = __shfl_up_sync(0xffffffffu, largest, 1);
      const Scaling scaling = scaling_of(lane == 0 ? before_all : left, m);
      shared.scalings[of][lane] = make_float2(scaling.keep, scaling.add);
      __syncwarp();  // all lanes have read the running maximum
      if (lane == 31) shared.running[of] = largest;
    }
    __syncthreads();  // the scalings of 32 splits are there
    if (query < tile.count) {
#pragma unroll 4
      for (int split = first; split < min(first + scalings_once, splits); ++split) {
        const float* at =
            partials + static_cast<std::size_t>(split) * apart + query * attention_partial_floats;
        const float4 low = __ldcg(reinterpret_cast<const float4*>(at + first_dim));
        const float4 high = __ldcg(reinterpret_cast<const float4*>(at + first_dim + 4));
        const float l = __ldcg(at + kv_head_dim + 1);
        const float2 factors = shared.scalings[query][split - first];
        const float o[thread_dims] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (!(l < 0)) total.take_in_scaled(l, o, {0, factors.x, factors.y});
      }
    }
    __syncthreads();  // the next scalings may be written
  }
  if (query < tile.count) put_out(tile, query, first_dim, total);
}

struct Splits {  // of a tile
  int count, first_chunk, past_chunk;

  __device__ explicit Splits(const Tile& tile) {
    first_chunk = tile.first_chunk();
    past_chunk = tile.past_chunk();
    count = tile.args.window > 0 ? 1 : (past_chunk + attention_split_chunks - 1) / attention_split_chunks;
  }
  __device__ int begin(int split) const { return count == 1 ? first_chunk : split * attention_split_chunks; }
  __device__ int end(int split) const {
    return count == 1 ? past_chunk : min((split + 1) * attention_split_chunks, past_chunk);
  }
};

__device__ __forceinline__ void run_split(const Tile& tile, const Splits& splits, int split,
                                          std::size_t first_partial, int sequence_index, FewShared& shared) {
  const AttentionCudaArgs& args = tile.args;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int query = thread / (kv_head_dim / thread_dims), first_dim = thread % 8 * thread_dims;
  const TileQueries q = tile.load_queries(lane);
  QueryTotal total{.m = attention_nothing, .l = 0, .o = {}};
  bool any = false;
  for (int chunk = splits.begin(split); chunk < splits.end(split); chunk += warps) {
    run_chunk(tile, q, chunk + warp, splits.end(split), shared, warp, lane);
    __syncthreads();  // all chunks' results are there
    if (query < tile.count) {
      for (int of = 0; of < warps; ++of) {
        const float l = shared.l[of][query];
        if (l < 0) continue;
        total.take_in_scaled(l, &shared.o[of][query][first_dim], scaling_of(total.m, shared.m[of][query]));
        any = true;
      }
    }
    __syncthreads();  // the next chunks' results may be written
  }
  if (splits.count == 1) {
    if (query < tile.count) {
      const float sink = tile.sink(query);
      QueryTotal all{.m = sink, .l = tile.sink_weight(), .o = {}};
      all.take_in_scaled(total.l, total.o, scaling_of(sink, total.m));
      put_out(tile, query, first_dim, all);
    }
    return;
  }
  // Splits of one sequence and KV head lie kv_heads tiles apart.
  const std::size_t tile_floats = attention_tile * attention_partial_floats;
  const std::size_t apart = tile_floats * static_cast<std::size_t>(args.cache.kv_heads);
  float* const partials =
      args.workspace.partials + first_partial * apart + static_cast<std::size_t>(tile.kv_head) * tile_floats;
  if (query < tile.count) {
    float* const at = partials + static_cast<std::size_t>(split) * apart + query * attention_partial_floats;
    *reinterpret_cast<float4*>(at + first_dim) = make_float4(total.o[0], total.o[1], total.o[2], total.o[3]);
    *reinterpret_cast<float4*>(at + first_dim + 4) =
        make_float4(total.o[4], total.o[5], total.o[6], total.o[7]);
    if (first_dim == 0) {
      at[kv_head_dim] = total.m;
      at[kv_head_dim + 1] = any ? total.l : -1.0f;
    }
  }
  __syncthreads();  // the count below speaks for every thread's partials
  if (thread == 0) {
    std::uint32_t* const arrived =
        &args.workspace.arrived[sequence_index * args.cache.kv_heads + tile.kv_head];
    shared.is_last = ptx::add_acquire_release(arrived, 1) + 1 == static_cast<unsigned>(splits.count);
    if (shared.is_last) *arrived = 0;  // all have come; for the next launch
  }
  __syncthreads();  // others' partials are read after thread 0 has seen them counted
  if (shared.is_last) take_in_splits(tile, partials, apart, splits.count, shared);
}

__global__ void __launch_bounds__(few_threads, 2)
    sm90_attention_few(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ FewShared shared;
  __shared__ std::int32_t before[attention_max_sequences + 1];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int group = args.heads / args.cache.kv_heads;
  const auto tile_of = [&](int index, int kv_head) {
    const SequenceCuda sequence = args.sequences[index];
    return Tile{args, sequence, kv_head, group, 0, sequence.row_count * group};
  };
  add_up_units(before, args.sequence_count, [&](int index) {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0 || !has_few_rows(sequence, group)) return 0;
    return Splits(tile_of(index, 0)).count;
  });
  const int units = before[args.sequence_count] * args.cache.kv_heads;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int at = unit / args.cache.kv_heads;
    const int index = sequence_of(before, args.sequence_count, at);
    const Tile tile = tile_of(index, unit % args.cache.kv_heads);
    run_split(tile, Splits(tile), at - before[index], static_cast<std::size_t>(before[index]), index, shared);
    __syncthreads();  // shared memory is the next unit's
  }
}

}  // namespace

void launch_attention_few(const AttentionCudaArgs& args, cudaStream_t stream) {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int most = std::max(args.window > 0 ? args.sequence_count : args.max_splits, 1) * args.cache.kv_heads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(most, 2 * processors))),
                 .threads = few_threads,
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_few, args);
}

}  // namespace nibble
