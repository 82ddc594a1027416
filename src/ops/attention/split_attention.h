// How attention over splits is shared by threads: jobs on a line, cut between splits, whose partial results
// are taken in in the order of splits. Which thread ran which split never changes a bit. What a query is,
// what it sees of a split, and where its result goes, is the op's own (SplitAttention's parameter).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/attention/attention_kernels.h"
#include "ops/fixed_math.h"

namespace nibble {

// Queries that one thread takes through a split together: its keys and values stay in the second-level
// cache meanwhile, and the queries' totals on the stack.
inline constexpr int max_job_queries = 64;

// Consecutive rows of one sequence and query heads of one KV head.
struct SplitJob {
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

// What a step asks of attention, as far as it decides who does what.
struct SplitWork {
  std::span<const SequenceRows> sequences;
  int heads = 0;
  int kv_heads = 0;
  int most_job_heads = max_job_queries;  // fewer: threads share a row without cutting it
  int window = 0;                        // keys a query sees, itself included; 0: all
  int value_dim = 0;                     // of a query's result
  const float* sinks = nullptr;          // [heads] logits; null: none
  std::span<float> room;                 // for splits of one row that run on different threads
};

// All jobs of a step on a line, one unit of cost for each query and position. The threads take equal
// lengths of the line: jobs go to the thread in whose length they begin; a job of a single row is cut where
// a length ends, between two splits, since it may be all there is to do.
class SplitLine {
 public:
  SplitLine(const SplitWork& work, int shares) : work_(work), shares_(shares) {
    // Rows share a job as far as there are jobs enough for all threads.
    std::int64_t rows = 0;
    for (const SequenceRows& sequence : work.sequences) rows += sequence.row_count;
    most_rows_ = std::max<std::int64_t>(1, rows * work.kv_heads / (4 * shares));
    each_job([&](const SplitJob& job, std::int64_t) {
      length_ += job.cost();
      return true;
    });
    region_ = shares > 1 ? static_cast<std::int64_t>(work.room.size()) / (shares - 1) : 0;
  }

  int shares() const { return shares_; }

  // visit(job, where the job begins) until it returns false.
  template <class Visit>
  void each_job(Visit&& visit) const {
    const int kv_heads = work_.kv_heads, group = work_.heads / kv_heads;
    std::int64_t offset = 0;
    for (const SequenceRows& sequence : work_.sequences) {
      for (int head = 0; head < work_.heads;) {
        const int kv_head = head / group;
        const int heads = std::min(work_.most_job_heads, (kv_head + 1) * group - head);
        const int most_rows = static_cast<int>(std::min<std::int64_t>(most_rows_, max_job_queries / heads));
        for (int row = 0; row < sequence.row_count; row += most_rows) {
          const int rows = std::min(most_rows, sequence.row_count - row);
          const int position = sequence.first_position + row;
          const SplitJob job{.sequence = &sequence,
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
    return work_.window > 0 ? std::max(0, position - work_.window + 1) : 0;
  }

  std::int64_t begin_of(int share) const { return length_ * share / shares_; }

  // The first split of the job that does not belong to shares before `share`.
  int first_split_of(int share, const SplitJob& job, std::int64_t offset) const {
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
  float* record(int share, const SplitJob& job, int index) const {
    return work_.room.data() + region_ * (share - 1) +
           static_cast<std::int64_t>(index) * job.queries() * partial_floats(work_.value_dim);
  }

 private:
  bool may_cut(const SplitJob& job) const {
    const std::int64_t records = job.end_split() - job.first_split();
    return job.rows == 1 && records * job.queries() * partial_floats(work_.value_dim) <= region_;
  }

  const SplitWork& work_;
  int shares_;
  std::int64_t most_rows_ = 1;  // of one job
  std::int64_t length_ = 0;
  std::int64_t region_ = 0;  // floats of the room for each share but the first
};

// Runs the jobs of a step. `Heads` is an op's own and has:
//   View, view_of(job, split)            a split's keys and values;
//   Tile, attend(tile, view, partials)   some queries, and what they take from a view;
//   query(row, head), out(row, head)     where a query lies, and where its result goes;
//   most_values                          the largest value_dim.
template <class Heads>
class SplitAttention {
 public:
  SplitAttention(OpContext& context, const SplitWork& work, const Heads& heads)
      : context_(context),
        work_(work),
        heads_(heads),
        line_(work_, context.threads.size()),
        values_(work.value_dim),
        stride_(partial_floats(work.value_dim)) {}

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
  using Tile = typename Heads::Tile;

  void run_share(int share) {
    WorkMeter meter(context_.threads);
    const std::int64_t line_end = line_.begin_of(share + 1);
    line_.each_job([&](const SplitJob& job, std::int64_t offset) {
      if (offset >= line_end) return false;
      const int begin = line_.first_split_of(share, job, offset);
      const int end = line_.first_split_of(share + 1, job, offset);
      if (begin < end) run_splits(share, job, begin, end, meter);
      return true;
    });
  }

  void run_splits(int share, const SplitJob& job, int begin, int end, WorkMeter& meter) {
    const std::int64_t of_split = std::int64_t{2} * job.queries() * kv_split * values_;
    if (begin > job.first_split()) {
      for (int split = begin; split < end; ++split) {
        float* records = line_.record(share, job, 1 + split - begin);
        attend_split(
            job, split, [&](int query, int) { return records + query * stride_; }, [](int, int) {});
        meter.add(of_split);
      }
      return;
    }
    alignas(64) float totals[max_job_queries * partial_floats(Heads::most_values)];
    alignas(64) float partials[Tile::most * partial_floats(Heads::most_values)];
    start_totals(job, totals);
    for (int split = begin; split < end; ++split) {
      attend_split(
          job, split, [&](int, int in_tile) { return partials + in_tile * stride_; },
          [&](int query, int in_tile) { take_in(totals + query * stride_, partials + in_tile * stride_); });
      meter.add(of_split);
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
  void attend_split(const SplitJob& job, int split, Place&& place, Done&& done) {
    const auto view = heads_.view_of(job, split);
    const int base = split * kv_split;
    Tile tile;
    int first_query = 0;
    const auto flush = [&] {
      if (tile.count == 0) return;
      heads_.attend(tile, view, place(first_query, 0));
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
        tile.q[tile.count] = heads_.query(job.sequence->row_begin + job.row + row, job.head + head);
        tile.begin[tile.count] = begin;
        tile.end[tile.count] = end;
        if (++tile.count == Tile::most) flush();
      }
    }
    flush();
  }

  // A weight below zero marks a total that has taken in nothing yet.
  void start_totals(const SplitJob& job, float* totals) const {
    for (int query = 0; query < job.queries(); ++query) {
      float* total = totals + query * stride_;
      std::fill_n(total, values_, 0.0f);
      const bool sink = work_.sinks != nullptr;
      *partial_maximum(total, values_) = sink ? work_.sinks[job.head + query % job.heads] : 0.0f;
      *partial_weight(total, values_) = sink ? 1.0f : -1.0f;
    }
  }

  void take_in(float* total, const float* split) const {
    float& total_maximum = *partial_maximum(total, values_);
    float& total_weight = *partial_weight(total, values_);
    const float split_maximum = split[values_], split_weight = split[values_ + 1];
    if (total_weight < 0) {
      std::copy_n(split, stride_, total);
      return;
    }
    const float maximum = std::max(total_maximum, split_maximum);
    const float keep = fixed_exp(total_maximum - maximum);
    const float add = fixed_exp(split_maximum - maximum);
    total_maximum = maximum;
    total_weight = total_weight * keep + split_weight * add;
    for (int d = 0; d < values_; ++d) total[d] = total[d] * keep + split[d] * add;
  }

  void finish(const SplitJob& job, const float* totals) const {
    for (int query = 0; query < job.queries(); ++query) {
      const float* total = totals + query * stride_;
      float* out =
          heads_.out(job.sequence->row_begin + job.row + query / job.heads, job.head + query % job.heads);
      const float weight = total[values_ + 1];
      for (int d = 0; d < values_; ++d) out[d] = context_.activation(total[d] / weight);
    }
  }

  bool any_cut() const {
    bool found = false;
    line_.each_job([&](const SplitJob& job, std::int64_t offset) {
      found = line_.first_split_of(line_.home_of(offset) + 1, job, offset) < job.end_split();
      return !found;
    });
    return found;
  }

  // Completes the job whose first cut is at the beginning of `share`, if there is one.
  void join_cut(int share) {
    line_.each_job([&](const SplitJob& job, std::int64_t offset) {
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
  SplitWork work_;
  const Heads& heads_;
  SplitLine line_;
  int values_, stride_;
};

// Floats of room that let every row of at most `max_positions` positions be spread over the threads.
inline std::int64_t split_room(int threads, int heads_a_group, int value_dim, int max_positions) {
  const std::int64_t queries = std::min(max_job_queries, heads_a_group);
  const std::int64_t splits = (max_positions + kv_split - 1) / kv_split;
  return std::max(threads - 1, 0) * splits * queries * partial_floats(value_dim);
}

}  // namespace nibble
