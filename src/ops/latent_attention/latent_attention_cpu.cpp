#include <algorithm>
#include <limits>

#include "base/check.h"
#include "formats/e4m3.h"
#include "ops/attention/split_attention.h"
#include "ops/fixed_math.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// All heads read one latent: in jobs of a few, threads share a row without cutting it between splits.
constexpr int job_heads = 16;
// Rows of more positions are not cut beside.
constexpr int most_cut_positions = 32768;

constexpr int max_width = max_latent_rank + max_latent_rotated;

// The vectors of one run, widened once for all queries of a tile.
class WidenedRun {
 public:
  const float* read(const std::byte* run, DType dtype, int floats) {
    switch (dtype) {
      case DType::bf16: return widen(reinterpret_cast<const Bf16*>(run), floats);
      case DType::f8_e4m3: return widen(reinterpret_cast<const E4m3*>(run), floats);
      default: return reinterpret_cast<const float*>(run);
    }
  }

 private:
  template <class Element>
  const float* widen(const Element* from, int floats) {
    for (int i = 0; i < floats; ++i) values_[i] = from[i].to_float();
    return values_;
  }

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

  SharedLatents(const RowKernels& rows, const LatentAttentionArgs& args) : rows_(rows), args_(args) {}

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

  // work(query, position, its vector) for what each query sees, queries of a run together; a query's
  // positions come in order. Without a window all see a split from its first position on.
  template <class Work>
  void for_each_seen(const Tile& tile, const View& view, const Work& work) const {
    const int width = args_.cache.width();
    WidenedRun widened;
    for (int begin = 0; begin < tile.end[tile.count - 1]; begin += kv_run) {
      const int most = std::min(kv_run, tile.end[tile.count - 1] - begin);
      const float* run = widened.read(view.runs[begin / kv_run], args_.cache.dtype, most * width);
      for (int i = 0; i < tile.count; ++i) {
        const int end = std::min(begin + kv_run, tile.end[i]);
        for (int position = begin; position < end; ++position)
          work(i, position, run + (position - begin) * width);
      }
    }
  }

  void score(const Tile& tile, const View& view, float (*scores)[kv_split]) const {
    for_each_seen(tile, view, [&](int i, int position, const float* vector) {
      scores[i][position] = rows_.dot(tile.q[i], vector, args_.cache.width()) * args_.scale;
    });
  }

  // Scores become weights; their maximum and their sum go to the partial.
  void weigh(float* scores, int end, float* partial) const {
    float maximum = -std::numeric_limits<float>::infinity();
    for (int position = 0; position < end; ++position)
      maximum = scores[position] > maximum ? scores[position] : maximum;
    float lanes[kv_run] = {};
    for (int position = 0; position < end; ++position) {
      scores[position] = fixed_exp(scores[position] - maximum);
      lanes[position % kv_run] += scores[position];
    }
    for (int width = kv_run / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    *partial_maximum(partial, args_.cache.rank) = maximum;
    *partial_weight(partial, args_.cache.rank) = lanes[0];
  }

  void add_latents(const Tile& tile, const View& view, const float (*weights)[kv_split],
                   float* partials) const {
    for (int i = 0; i < tile.count; ++i) std::fill_n(partial(partials, i), args_.cache.rank, 0.0f);
    for_each_seen(tile, view, [&](int i, int position, const float* vector) {
      rows_.add_scaled(partial(partials, i), weights[i][position], vector, args_.cache.rank);
    });
  }

  const RowKernels& rows_;
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
  const SharedLatents latents(context.rows, args);
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
