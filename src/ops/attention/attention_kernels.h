// What an implementation of paged attention has to give.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "ops/attention/attention.h"

namespace nibble {

inline constexpr int max_attention_head_dim = 256;
// Queries that share each load of a key or value.
inline constexpr int max_tile_queries = 8;

inline constexpr int split_runs = kv_split / kv_run;

// One KV head's vectors at the positions of one split, run by run. Past the last run that is seen stand the
// next split's, for kernels to fetch early, or that last run again.
struct SplitView {
  const std::byte* keys[2 * split_runs];  // each a run of keys
  const std::byte* values[split_runs];    // each kv_run values
  DType dtype = DType::f32;
  int head_dim = 0;
};

// A chunk of the values at a run's positions, from `position` on and before `past`, of elements of so many
// bytes. Beside it as many bytes of the next split's keys, to be asked for while values are added up: what a
// split needs itself is asked for while its keys are multiplied, as fast as a core's memory gives.
template <int bytes>
struct RunChunks {
  const std::byte* value;
  const std::byte* ahead;
  int stride;  // from a position to the next
  int end;     // behind the last position

  RunChunks(const SplitView& split, int position, int past, int chunk)
      : stride(split.head_dim * bytes), end(std::min(past, (position / kv_run + 1) * kv_run)) {
    const int run = position / kv_run, at = position % kv_run * stride + chunk * bytes;
    value = split.values[run] + at;
    ahead = split.keys[split_runs + run] + at;
  }
  void next() { value += stride, ahead += stride; }
  void ask_ahead() const {  // to the second-level cache
    for (int line = 0; line < kv_chunk * bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
  }
};

// Queries of one KV head, in order of their positions. Query i sees the positions [begin[i], end[i]) of the
// split, counted from its first; both ascend with i and no range is empty.
template <int most_queries>
struct QueryTileOf {
  static constexpr int most = most_queries;
  int count = 0;
  const float* q[most];  // [head_dim] each
  int begin[most];
  int end[most];
  float scale = 1.0f;
};
using QueryTile = QueryTileOf<max_tile_queries>;

// A query's result over some splits: sum of w v [head_dim], then their maximum and the sum of w.
constexpr int partial_floats(int head_dim) { return head_dim + 16; }
inline float* partial_maximum(float* partial, int head_dim) { return partial + head_dim; }
inline float* partial_weight(float* partial, int head_dim) { return partial + head_dim + 1; }

struct AttentionKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  // Each query over one split: partials [tile.count, partial_floats(head_dim)], written whole.
  void (*attend_split)(const QueryTile& tile, const SplitView& split, float* partials);
};

// In order of preference; the last one runs anywhere. All give the same bits.
std::span<const AttentionKernels> attention_kernels();

// The contract in plain C++, the oracle of the others.
void scalar_attend_split(const QueryTile& tile, const SplitView& split, float* partials);

bool avx2_attention_supported();
void avx2_attend_split(const QueryTile& tile, const SplitView& split, float* partials);

bool avx512_attention_supported();
void avx512_attend_split(const QueryTile& tile, const SplitView& split, float* partials);

}  // namespace nibble
