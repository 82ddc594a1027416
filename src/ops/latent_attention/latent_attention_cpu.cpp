#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "formats/e4m3.h"
#include "ops/attention/split_attention.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/latent_attention/latent_kernels.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// All heads read one latent: in jobs of a few, threads share a row without cutting it between splits.
constexpr int job_heads = 16;
// Rows of more positions are not cut beside.
constexpr int most_cut_positions = 32768;

constexpr int max_width = max_latent_rank + max_latent_rotated;

constexpr std::array<float, 256> e4m3_values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = E4m3{static_cast<std::uint8_t>(code)}.to_float();
  return values;
}();

// The vectors of one run, widened once for all queries of a tile.
class WidenedRun {
 public:
  const float* read(const LatentKernels& kernels, const std::byte* run, DType dtype, int floats) {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(run);
    if (dtype == DType::bf16) {
      kernels.widen(reinterpret_cast<const Bf16*>(run), floats, values_);
    } else {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(run);
      for (int i = 0; i < floats; ++i) values_[i] = e4m3_values[codes[i]];
    }
    return values_;
  }

 private:
  alignas(64) float values_[kv_run * max_width];
};

// All heads, which share the latents.
class SharedLatents {
 public:
  using Tile = QueryTileOf<32>;
  static constexpr int most_values = max_latent_rank;
  struct View {
    const std::byte* runs[split_runs];  // up to the last that is seen
  };

  SharedLatents(const OpContext& context, const LatentAttentionArgs& args)
      : rows_(context.rows), kernels_(context.latents), args_(args) {}

  const float* query(int row, int head) const { return args_.q + at(row, head) * args_.cache.width(); }
  float* out(int row, int head) const { return args_.out + at(row, head) * args_.cache.rank; }

  View view_of(const SplitJob& job, int split) const {
    const LatentLayer& cache = args_.cache;
    View view{};
    for (int run = 0; run < split_runs; ++run) {
      const int position = split * kv_split + run * kv_run;
      if (position > job.last) break;
      const std::int32_t page = job.sequence->pages[static_cast<std::size_t>(position / cache.page_size)];
      view.runs[run] = cache.vectors + cache.at(page, position % cache.page_size);
    }
    return view;
  }

  void attend(const Tile& tile, const View& view, float* partials) const {
    float weights[Tile::most][kv_split];
    score(tile, view, weights);
    for (int i = 0; i < tile.count; ++i) weigh(weights[i], tile.end[i], partial(partials, i));
    add_latents(tile, view, weights, partials);
  }

 private:
  std::int64_t at(int row, int head) const { return std::int64_t{row} * args_.heads + head; }
  float* partial(float* partials, int query) const {
    return partials + query * partial_floats(args_.cache.rank);
  }

  // Queries [first, first + count) of a tile, which all see `positions` of a run that begins at `at`.
  struct Seen {
    int first, count, positions, at;
    const float* vectors;
  };
  // work(seen) for what each query sees, queries that see as much of a run together; a query's positions come
  // in order. Without a window all see a split from its first position on, and later queries as much or more.
  template <class Work>
  void for_each_seen(const Tile& tile, const View& view, const Work& work) const {
    const int width = args_.cache.width();
    WidenedRun widened;
    int first = 0;
    for (int at = 0; at < tile.end[tile.count - 1]; at += kv_run) {
      while (tile.end[first] <= at) ++first;
      const int most = std::min(kv_run, tile.end[tile.count - 1] - at);
      const float* run = widened.read(kernels_, view.runs[at / kv_run], args_.cache.dtype, most * width);
      for (int i = first, past = first; i < tile.count; i = past) {
        const int positions = std::min(kv_run, tile.end[i] - at);
        while (past < tile.count && std::min(kv_run, tile.end[past] - at) == positions) ++past;
        work({.first = i, .count = past - i, .positions = positions, .at = at, .vectors = run});
      }
    }
  }

  void score(const Tile& tile, const View& view, float (*scores)[kv_split]) const {
    for_each_seen(tile, view, [&](const Seen& seen) {
      kernels_.score({.q = tile.q + seen.first,
                      .queries = seen.count,
                      .vectors = seen.vectors,
                      .positions = seen.positions,
                      .width = args_.cache.width(),
                      .scale = args_.scale,
                      .scores = scores + seen.first,
                      .at = seen.at});
    });
  }

  // Scores become weights; their maximum and their sum go to the partial.
  void weigh(float* scores, int end, float* partial) const {
    const float maximum = rows_.scan(scores, end).largest;
    rows_.weigh(scores, maximum, 1.0f, end, scores);
    float lanes[kv_run] = {};
    for (int position = 0; position < end; ++position) lanes[position % kv_run] += scores[position];
    for (int width = kv_run / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    *partial_maximum(partial, args_.cache.rank) = maximum;
    *partial_weight(partial, args_.cache.rank) = lanes[0];
  }

  void add_latents(const Tile& tile, const View& view, const float (*weights)[kv_split],
                   float* partials) const {
    for (int i = 0; i < tile.count; ++i) std::fill_n(partial(partials, i), args_.cache.rank, 0.0f);
    for_each_seen(tile, view, [&](const Seen& seen) {
      kernels_.add({.weights = weights + seen.first,
                    .queries = seen.count,
                    .vectors = seen.vectors,
                    .positions = seen.positions,
                    .width = args_.cache.width(),
                    .rank = args_.cache.rank,
                    .sums = partial(partials, seen.first),
                    .stride = partial_floats(args_.cache.rank),
                    .at = seen.at});
    });
  }

  const RowKernels& rows_;
  const LatentKernels& kernels_;
  const LatentAttentionArgs& args_;
};

}  // namespace

bool latent_attention_takes(std::int64_t rank, std::int64_t rotated) {
  return rank > 0 && rank <= max_latent_rank && rank % kv_run == 0 && rotated > 0 &&
         rotated <= max_latent_rotated && rotated % kv_run == 0;
}

std::int64_t latent_attention_room(int threads, int heads, int rank, int max_positions) {
  return split_room(threads, std::min(heads, job_heads), rank, std::min(max_positions, most_cut_positions));
}

void latent_attention(OpContext& context, const LatentAttentionArgs& args) {
  NIBBLE_CHECK(latent_attention_takes(args.cache.rank, args.cache.rotated) &&
               attention_takes_page_size(args.cache.page_size));
  const SharedLatents latents(context, args);
  SplitAttention(context,
                 {.sequences = args.sequences,
                  .heads = args.heads,
                  .kv_heads = 1,
                  .most_job_heads = job_heads,
                  .value_dim = args.cache.rank,
                  .room = args.room},
                 latents)
      .run();
}

}  // namespace nibble
