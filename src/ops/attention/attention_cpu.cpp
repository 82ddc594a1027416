#include <algorithm>

#include "base/check.h"
#include "ops/attention/attention_kernels.h"
#include "ops/fixed_math.h"

namespace nibble {
namespace {

bool always_supported() { return true; }

constexpr AttentionKernels kernels[] = {
    {"avx512", avx512_attention_supported, avx512_attend_split},
    {"avx2", avx2_attention_supported, avx2_attend_split},
    {"scalar", always_supported, scalar_attend_split},
};

// Queries that one thread takes through a split together: its keys and values stay in the second-level
// cache meanwhile, and the queries' totals (at most 70 KB) on the stack.
constexpr int max_job_queries = 64;

// Consecutive rows of one sequence and query heads of one KV head.
struct Job {
  const SequenceRows* sequence = nullptr;
  int row = 0;  // within the sequence's rows of this step
  int rows = 0;
  int kv_head = 0;
  int head = 0;
  int heads = 0;
  int first = 0;  // positions that its queries see: [first, last]
  int last = 0;

  int queries() const { return rows * heads; }
  std::int64_t cost() const { return static_cast<std::int64_t>(queries()) * (last - first + 1); }
  int first_split() const { return first / kv_split; }
  int end_split() const { return last / kv_split + 1; }
};

// All jobs of a step on a line, one unit of cost for each query and position. The threads take equal
// lengths of the line: jobs go to the thread in whose length they begin; a job of a single row is cut where
// a length ends, between two splits, since it may be all there is to do.
class Line {
 public:
  Line(const PagedAttentionArgs& args, int shares) : args_(args), shares_(shares) {
    // Rows share a job as far as there are jobs enough for all threads.
    std::int64_t rows = 0;
    for (const SequenceRows& sequence : args.sequences) rows += sequence.row_count;
    most_rows_ = std::max<std::int64_t>(1, rows * args.cache.kv_heads / (4 * shares));
    each_job([&](const Job& job, std::int64_t) {
      length_ += job.cost();
      return true;
    });
    region_ = shares > 1 ? static_cast<std::int64_t>(args.room.size()) / (shares - 1) : 0;
  }

  int shares() const { return shares_; }

  // visit(job, where the job begins) until it returns false.
  template <class Visit>
  void each_job(Visit&& visit) const {
    const int kv_heads = args_.cache.kv_heads, group = args_.heads / kv_heads;
    std::int64_t offset = 0;
    for (const SequenceRows& sequence : args_.sequences) {
      for (int head = 0; head < args_.heads;) {
        const int kv_head = head / group;
        const int heads = std::min(max_job_queries, (kv_head + 1) * group - head);
        const int most_rows = static_cast<int>(std::min<std::int64_t>(most_rows_, max_job_queries / heads));
        for (int row = 0; row < sequence.row_count; row += most_rows) {
          const int rows = std::min(most_rows, sequence.row_count - row);
          const int position = sequence.first_position + row;
          const Job job{.sequence = &sequence,
                        .row = row,
                        .rows = rows,
                        .kv_head = kv_head,
                        .head = head,
                        .heads = heads,
                        .first = first_seen(position),
                        .last = position + rows - 1};
          if (!visit(job, offset)) return;
          offset += job.cost();
        }
        head += heads;
      }
    }
  }

  int first_seen(int position) const {
    return args_.window > 0 ? std::max(0, position - args_.window + 1) : 0;
  }

  std::int64_t begin_of(int share) const { return length_ * share / shares_; }

  // The first split of the job that does not belong to shares before `share`.
  int first_split_of(int share, const Job& job, std::int64_t offset) const {
    const std::int64_t past = begin_of(share) - offset;
    if (past <= 0) return job.first_split();
    if (past >= job.cost() || !may_cut(job)) return job.end_split();
    const std::int64_t position = job.first + (past + job.queries() - 1) / job.queries();
    return std::min(static_cast<int>((position + kv_split - 1) / kv_split), job.end_split());
  }

  // The share that has the job's first split.
  int home_of(std::int64_t offset) const {
    int share = static_cast<int>(offset * shares_ / length_);
    while (share + 1 < shares_ && begin_of(share + 1) <= offset) ++share;
    while (begin_of(share) > offset) --share;
    return share;
  }

  // Where a cut at the beginning of `share` keeps the job's results: record 0 is the total of the splits
  // that the job's home has taken in, the others are the splits of `share`, each [queries, floats].
  float* record(int share, const Job& job, int index) const {
    return args_.room.data() + region_ * (share - 1) +
           static_cast<std::int64_t>(index) * job.queries() * partial_floats(args_.cache.head_dim);
  }

 private:
  bool may_cut(const Job& job) const {
    const std::int64_t records = job.end_split() - job.first_split();
    return job.rows == 1 && records * job.queries() * partial_floats(args_.cache.head_dim) <= region_;
  }

  const PagedAttentionArgs& args_;
  int shares_;
  std::int64_t most_rows_ = 1;  // of one job
  std::int64_t length_ = 0;
  std::int64_t region_ = 0;  // floats of the room for each share but the first
};

class Attention {
 public:
  Attention(OpContext& context, const PagedAttentionArgs& args)
      : context_(context),
        args_(args),
        line_(args, context.threads.size()),
        head_dim_(args.cache.head_dim),
        stride_(partial_floats(args.cache.head_dim)) {}

  void run() {
    context_.threads.parallel_for(line_.shares(), [&](int begin, int end) {
      for (int share = begin; share < end; ++share) run_share(share);
    });
    if (!any_cut()) return;
    context_.threads.parallel_for(line_.shares() - 1, [&](int begin, int end) {
      for (int share = begin + 1; share < end + 1; ++share) join_cut(share);
    });
  }

 private:
  void run_share(int share) {
    const std::int64_t line_end = line_.begin_of(share + 1);
    line_.each_job([&](const Job& job, std::int64_t offset) {
      if (offset >= line_end) return false;
      const int begin = line_.first_split_of(share, job, offset);
      const int end = line_.first_split_of(share + 1, job, offset);
      if (begin < end) run_splits(share, job, begin, end);
      return true;
    });
  }

  void run_splits(int share, const Job& job, int begin, int end) {
    if (begin > job.first_split()) {
      for (int split = begin; split < end; ++split) {
        float* records = line_.record(share, job, 1 + split - begin);
        attend_split(
            job, split, [&](int query, int) { return records + query * stride_; }, [](int, int) {});
      }
      return;
    }
    alignas(64) float totals[max_job_queries * partial_floats(max_head_dim)];
    alignas(64) float partials[max_tile_queries * partial_floats(max_head_dim)];
    start_totals(job, totals);
    for (int split = begin; split < end; ++split) {
      attend_split(
          job, split, [&](int, int in_tile) { return partials + in_tile * stride_; },
          [&](int query, int in_tile) { take_in(totals + query * stride_, partials + in_tile * stride_); });
    }
    if (end == job.end_split()) {
      finish(job, totals);
    } else {
      std::copy_n(totals, job.queries() * stride_, line_.record(share + 1, job, 0));
    }
  }

  // Runs the job's queries over one split, a tile at a time; place(query, in tile) is where a query's result
  // goes, consecutive within a tile, and done(query, in tile) is called when it is there.
  template <class Place, class Done>
  void attend_split(const Job& job, int split, Place&& place, Done&& done) {
    const SplitView view = view_of(job, split);
    const int base = split * kv_split;
    QueryTile tile{.scale = args_.scale};
    int first_query = 0;
    const auto flush = [&] {
      if (tile.count == 0) return;
      context_.attention.attend_split(tile, view, place(first_query, 0));
      for (int i = 0; i < tile.count; ++i) done(first_query + i, i);
      tile.count = 0;
    };
    for (int row = 0; row < job.rows; ++row) {
      const int position = job.sequence->first_position + job.row + row;
      const int begin = std::max(line_.first_seen(position) - base, 0);
      const int end = std::min(position + 1 - base, kv_split);
      if (begin >= end) continue;
      for (int head = 0; head < job.heads; ++head) {
        if (tile.count == 0) first_query = row * job.heads + head;
        tile.q[tile.count] = args_.q + query_at(job, row * job.heads + head);
        tile.begin[tile.count] = begin;
        tile.end[tile.count] = end;
        if (++tile.count == max_tile_queries) flush();
      }
    }
    flush();
  }

  SplitView view_of(const Job& job, int split) const {
    const KvLayer& cache = args_.cache;
    const std::size_t bytes = dtype_bytes(cache.dtype);
    SplitView view{.dtype = cache.dtype, .head_dim = head_dim_};
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

  // Where query i of the job lies in q and in out.
  std::int64_t query_at(const Job& job, int query) const {
    const std::int64_t row = job.sequence->row_begin + job.row + query / job.heads;
    return (row * args_.heads + job.head + query % job.heads) * head_dim_;
  }

  // A weight below zero marks a total that has taken in nothing yet.
  void start_totals(const Job& job, float* totals) const {
    for (int query = 0; query < job.queries(); ++query) {
      float* total = totals + query * stride_;
      std::fill_n(total, head_dim_, 0.0f);
      const bool sink = args_.sinks != nullptr;
      *partial_maximum(total, head_dim_) = sink ? args_.sinks[job.head + query % job.heads] : 0.0f;
      *partial_weight(total, head_dim_) = sink ? 1.0f : -1.0f;
    }
  }

  void take_in(float* total, const float* split) const {
    float& total_maximum = *partial_maximum(total, head_dim_);
    float& total_weight = *partial_weight(total, head_dim_);
    const float split_maximum = split[head_dim_], split_weight = split[head_dim_ + 1];
    if (total_weight < 0) {
      std::copy_n(split, stride_, total);
      return;
    }
    const float maximum = std::max(total_maximum, split_maximum);
    const float keep = fixed_exp(total_maximum - maximum);
    const float add = fixed_exp(split_maximum - maximum);
    total_maximum = maximum;
    total_weight = total_weight * keep + split_weight * add;
    for (int d = 0; d < head_dim_; ++d) total[d] = total[d] * keep + split[d] * add;
  }

  void finish(const Job& job, const float* totals) const {
    for (int query = 0; query < job.queries(); ++query) {
      const float* total = totals + query * stride_;
      float* out = args_.out + query_at(job, query);
      const float weight = total[head_dim_ + 1];
      for (int d = 0; d < head_dim_; ++d) out[d] = context_.activation(total[d] / weight);
    }
  }

  bool any_cut() const {
    bool found = false;
    line_.each_job([&](const Job& job, std::int64_t offset) {
      found = line_.first_split_of(line_.home_of(offset) + 1, job, offset) < job.end_split();
      return !found;
    });
    return found;
  }

  // Completes the job whose first cut is at the beginning of `share`, if there is one.
  void join_cut(int share) {
    line_.each_job([&](const Job& job, std::int64_t offset) {
      if (offset >= line_.begin_of(share)) return false;
      int split = line_.first_split_of(share, job, offset);
      if (line_.home_of(offset) != share - 1 || split >= job.end_split()) return true;
      float* totals = line_.record(share, job, 0);
      for (int owner = share; split < job.end_split(); ++owner) {
        const int end = line_.first_split_of(owner + 1, job, offset);
        for (int record = 1; split < end; ++split, ++record) {
          const float* records = line_.record(owner, job, record);
          for (int query = 0; query < job.queries(); ++query)
            take_in(totals + query * stride_, records + query * stride_);
        }
      }
      finish(job, totals);
      return false;
    });
  }

  OpContext& context_;
  const PagedAttentionArgs& args_;
  Line line_;
  int head_dim_, stride_;
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
  const std::int64_t queries = std::min(max_job_queries, heads / kv_heads);
  const std::int64_t splits = (max_positions + kv_split - 1) / kv_split;
  return std::max(threads - 1, 0) * splits * queries * partial_floats(head_dim);
}

bool attention_takes_head_dim(std::int64_t head_dim) {
  return head_dim > 0 && head_dim <= max_head_dim && head_dim % kv_chunk == 0;
}

bool attention_takes_page_size(int page_size) {
  return page_size > 0 && page_size % kv_run == 0 && kv_split % page_size == 0;
}

void paged_attention(OpContext& context, const PagedAttentionArgs& args) {
  NIBBLE_CHECK(attention_takes_head_dim(args.cache.head_dim));
  NIBBLE_CHECK(attention_takes_page_size(args.cache.page_size));
  NIBBLE_CHECK(args.heads % args.cache.kv_heads == 0);
  Attention(context, args).run();
}

}  // namespace nibble
