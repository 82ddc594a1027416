#include <algorithm>

#include "base/check.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/split_attention.h"

namespace nibble {
namespace {

bool always_supported() { return true; }

constexpr AttentionKernels kernels[] = {
    {"avx512", avx512_attention_supported, avx512_attend_split},
    {"avx2", avx2_attention_supported, avx2_attend_split},
    {"scalar", always_supported, scalar_attend_split},
};

// Heads of queries that share a head of keys and values.
class GroupedHeads {
 public:
  using Tile = QueryTile;
  static constexpr int most_values = max_attention_head_dim;

  GroupedHeads(const AttentionKernels& chosen, const PagedAttentionArgs& args)
      : kernels_(chosen), args_(args) {}

  const float* query(int row, int head) const { return args_.q + at(row, head); }
  float* out(int row, int head) const { return args_.out + at(row, head); }
  void attend(QueryTile& tile, const SplitView& view, float* partials) const {
    tile.scale = args_.scale;
    kernels_.attend_split(tile, view, partials);
  }

  SplitView view_of(const SplitJob& job, int split) const {
    const KvLayer& cache = args_.cache;
    const std::size_t bytes = dtype_bytes(cache.dtype);
    SplitView view{.dtype = cache.dtype, .head_dim = cache.head_dim};
    const int first_run = std::max(job.first, split * kv_split) % kv_split / kv_run;
    const int last_run = job.last / kv_run;
    for (int run = first_run; run < 2 * split_runs; ++run) {
      const int position = std::min(split * split_runs + run, last_run) * kv_run;
      const std::int32_t page = job.sequence->pages[static_cast<std::size_t>(position / cache.page_size)];
      const std::size_t at =
          static_cast<std::size_t>(cache.run(page, job.kv_head, position % cache.page_size)) * bytes;
      view.keys[run] = cache.keys + at;
      if (run < split_runs) view.values[run] = cache.values + at;
    }
    return view;
  }

 private:
  std::int64_t at(int row, int head) const {
    return (std::int64_t{row} * args_.heads + head) * args_.cache.head_dim;
  }

  const AttentionKernels& kernels_;
  const PagedAttentionArgs& args_;
};

}  // namespace

std::span<const AttentionKernels> attention_kernels() { return kernels; }

const AttentionKernels& best_attention_kernels() {
  for (const AttentionKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

std::int64_t attention_room(int threads, int heads, int kv_heads, int head_dim, int max_positions) {
  return split_room(threads, heads / kv_heads, head_dim, max_positions);
}

bool attention_takes_head_dim(std::int64_t head_dim) {
  return head_dim > 0 && head_dim <= max_attention_head_dim && head_dim % kv_chunk == 0;
}

bool attention_takes_page_size(int page_size) {
  return page_size > 0 && page_size % kv_run == 0 && kv_split % page_size == 0;
}

void paged_attention(OpContext& context, const PagedAttentionArgs& args) {
  NIBBLE_CHECK(attention_takes_head_dim(args.cache.head_dim));
  NIBBLE_CHECK(attention_takes_page_size(args.cache.page_size));
  NIBBLE_CHECK(args.heads % args.cache.kv_heads == 0);
  const GroupedHeads heads(context.attention, args);
  SplitAttention(context,
                 {.sequences = args.sequences,
                  .heads = args.heads,
                  .kv_heads = args.cache.kv_heads,
                  .window = args.window,
                  .value_dim = args.cache.head_dim,
                  .sinks = args.sinks,
                  .room = args.room},
                 heads)
      .run();
}

}  // namespace nibble
