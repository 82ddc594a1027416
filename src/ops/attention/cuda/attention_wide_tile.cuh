// Of the kernel for many rows of heads of 256 what its warps share: a block's shared memory, and how a tile
// comes into it. sm90_attention_wide.cu has who reads it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/attention/cuda/attention_conversion.cuh"
#include "ops/attention/cuda/attention_steps.cuh"

namespace nibble::wide {

inline constexpr int wide_dims = 256;
inline constexpr int halves = 2;  // warpgroups that read
inline constexpr int half_threads = 128, readers = halves * half_threads;
inline constexpr int wide_threads = 128 + readers;
inline constexpr int tile_queries = 64;
inline constexpr int step_positions = attention_step_of(wide_dims), step_eights = step_positions / 8;
inline constexpr int own_dims = wide_dims / halves;
// Shared memory of eight rows, which core matrices of 16 bytes a row fill: of keys and queries, of weights.
inline constexpr int eight_rows = 8 * wide_dims * 2, eight_weights = 8 * step_positions * 2;
// Warps of the first warpgroup: one brings keys and values, one queries, two convert.
inline constexpr int query_warp = 1, first_converter = 2, converters = 2;

template <class Kv>
inline constexpr bool is_converted = !std::is_same_v<Kv, KvBf16>;
template <class Kv>
inline constexpr int slots = is_converted<Kv> ? 4 : 5;
inline constexpr int coming_slots = 2;

using WideTile = HeadTile<wide_dims>;
template <class Kv>
using WideRing = KvRing<KvBf16, slots<Kv>, readers / 32, wide_dims>;
using WideComing = ComingRing<coming_slots, converters, wide_dims>;

template <class Kv>
struct alignas(128) WideShared {
  std::uint8_t ring[slots<Kv> * attention_slot_bytes<KvBf16, wide_dims>];
  std::uint8_t queries[tile_queries * wide_dims * 2];
  std::uint8_t weights[halves][tile_queries * step_positions * 2];  // of the half's step
  float exponents[halves][tile_queries];                            // m, once the half's step has entered
  float sums[halves][tile_queries][4];                              // of its weights, by lanes
  std::uint64_t full[slots<Kv>], empty[slots<Kv>];
  std::uint64_t queries_full, queries_empty;
  long long before[attention_max_sequences + 1];  // tiles
};
// Behind it, of keys and values that are converted.
struct alignas(128) ComingShared {
  std::uint8_t ring[coming_slots * attention_slot_bytes<KvE4m3, wide_dims>];
  std::uint64_t full[coming_slots], empty[coming_slots];
};
template <class Kv>
inline constexpr std::size_t shared_bytes = sizeof(WideShared<Kv>) +
                                            (is_converted<Kv> ? sizeof(ComingShared) : 0);
static_assert(std::max(shared_bytes<KvBf16>, shared_bytes<KvE4m3>) <= 226 * 1024, "a block has 227 KB");

// By one warp: asks for a tile's keys and values in the order in which they are read, keys a step ahead: K0,
// K1, V0, K2, V1 and so on to the last two values.
template <class Ring>
__device__ __forceinline__ void fill_steps(const Ring& ring, typename Ring::Place& at, const WideTile& tile,
                                           int lane) {
  const int first = tile.first_step(), past = tile.past_step();
  const KvCudaLayer& cache = tile.args.cache;
  int of_values = -1;  // the chunk of the step before
#pragma unroll 1
  for (int begin = first; begin < past; begin += 32) {  // a table's entries are fetched 32 at a time
    const int own = begin + lane < past ? tile.chunk_of((begin + lane) * step_positions) : -1;
#pragma unroll 1
    for (int step = begin; step < min(begin + 32, past); ++step) {
      const int chunk = __shfl_sync(0xffffffffu, own, step - begin);
      if (lane == 0) {
        ring.ask(at, cache.keys, chunk, -1);
        if (step > first) ring.ask(at.plus(1), cache.values, of_values, -1);
      }
      __syncwarp();  // lanes go on together, which exchanges are cheaper for
      at = at.plus(step > first ? 2 : 1);
      of_values = chunk;
    }
  }
  if (lane == 0) ring.ask(at, cache.values, of_values, -1);
  __syncwarp();
  at = at.plus(1);
}

// By one warp: brings a tile's queries as an operand.
template <class Kv>
__device__ __forceinline__ void fill_queries(const WideTile& tile, unsigned tiles, WideShared<Kv>& shared,
                                             int lane) {
  ptx::mbarrier_wait(&shared.queries_empty, (tiles & 1) ^ 1);
#pragma unroll 4
  for (int query = 0; query < tile_queries; ++query) {
    ptx::copy_to_shared(shared.queries + query / 8 * eight_rows + lane * 128 + query % 8 * 16,
                        tile.queries(query) + lane * 8);
  }
  ptx::await_copies_to_shared();
  ptx::fence_shared_writes();
  __syncwarp();  // all lanes' copies are there
  if (lane == 0) ptx::mbarrier_arrive(&shared.queries_full);
}

}  // namespace nibble::wide
