// paged_attention for sequences of many rows (prefill), with the bits of the kernel for few (attention_cuda.h
// has the order of additions).
//
// A warp takes a tile of 16 queries (2 rows of gpt-oss) over all the positions they see; the four warps of a
// block take neighbouring tiles of one KV head, so that three of four find keys and values in the first-level
// cache. FLOPs: 4 x 64 a query and position. Tiles are dealt from a sequence's end, where they are largest.
// Its products are mma.sync's, whose rate is some 60 % of wgmma's; what bounds it before that is the reading
// of operands, 16 KB a chunk and warp from the first-level cache for 128 tensor-core instructions.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/cuda/launch.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int warps = 4;
constexpr int many_threads = warps * 32;

__device__ __forceinline__ void begin_total(TileTotal& total, int row, float m, float l) {
  total.m[row] = m;
  total.l[row] = l;
#pragma unroll
  for (int j = 0; j < 8; ++j) total.o[j][2 * row] = total.o[j][2 * row + 1] = 0;
}

__device__ __forceinline__ void take_in_row(TileTotal& total, const TileTotal& other, int row) {
  const Scaling scaling = scaling_of(total.m[row], other.m[row]);
  total.m[row] = scaling.m;
  total.l[row] = take_in(total.l[row], other.l[row], scaling);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      total.o[j][2 * row + e] = take_in(total.o[j][2 * row + e], other.o[j][2 * row + e], scaling);
  }
}

__device__ __forceinline__ void run_tile(const Tile& tile, int lane) {
  const int g = lane / 4, t = lane % 4;
  const TileQueries q = tile.load_queries(lane);
  const Sight sights[2] = {tile.sight(g), tile.sight(g + 8)};
  TileTotal total;
#pragma unroll
  for (int row = 0; row < 2; ++row) begin_total(total, row, tile.sink(g + 8 * row), tile.sink_weight());
  const int past = tile.past_chunk();
#pragma unroll 1
  for (int chunk = tile.first_chunk(); chunk < past;) {
    const int split_end = tile.args.window > 0
                              ? past
                              : min((chunk / attention_split_chunks + 1) * attention_split_chunks, past);
    TileTotal split;
    bool any[2] = {false, false};
#pragma unroll
    for (int row = 0; row < 2; ++row) begin_total(split, row, attention_nothing, 0);
#pragma unroll 1
    for (; chunk < split_end; ++chunk) {
      TileTotal result;
      tile.attend<false>(result, q, chunk, lane);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (!sights[row].sees(chunk)) continue;
        take_in_row(split, result, row);
        any[row] = true;
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (any[row]) take_in_row(total, split, row);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int query = g + 8 * row;
    if (query >= tile.count) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<std::uint32_t*>(tile.out(query, 8 * j + 2 * t)) =
          ptx::pack_bf16x2(total.o[j][2 * row] / total.l[row], total.o[j][2 * row + 1] / total.l[row]);
    }
  }
}

__global__ void __launch_bounds__(many_threads)
    sm90_attention_many(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ std::int32_t before[attention_max_sequences + 1];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int group = args.heads / args.cache.kv_heads, tile_rows = attention_tile / group;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  add_up_units(before, args.sequence_count, [&](int index) {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0) return 0;
    if (args.rows != AttentionRows::all_as_many && has_few_rows(sequence, group)) return 0;
    return (sequence.row_count + warps * tile_rows - 1) / (warps * tile_rows);
  });
  const int units = before[args.sequence_count] * args.cache.kv_heads;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int at = unit / args.cache.kv_heads;
    const int index = sequence_of(before, args.sequence_count, at);
    const SequenceCuda sequence = args.sequences[index];
    const int in_sequence = before[index + 1] - 1 - at;
    const int first_row = (in_sequence * warps + ptx::warp_of_block()) * tile_rows;
    if (first_row >= sequence.row_count) continue;
    run_tile({args, sequence, unit % args.cache.kv_heads, group, first_row,
              min(tile_rows, sequence.row_count - first_row) * group},
             lane);
  }
}

}  // namespace

void launch_attention_many(const AttentionCudaArgs& args, cudaStream_t stream) {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(2 * processors)),
                 .threads = many_threads,
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_many, args);
}

}  // namespace nibble
