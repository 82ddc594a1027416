// How the kernel for few rows deals steps to blocks, and what a block has of pairs that others share.
#pragma once

#include "ops/attention/cuda/attention_steps.cuh"

namespace nibble {

inline constexpr int attention_uncut_steps = 2;  // a pair of so few stays in one block
// Steps for each multiprocessor from which on two blocks of it share them: one's barriers hide behind the
// other's products. With fewer, the second place is better left to the next launch.
inline constexpr int attention_double_steps = 3;
// About so many steps take as long as what blocks do who share a pair: what they leave each other goes
// through memory, and who ends a query waits for the last of them. A block that shares two does it twice.
inline constexpr int attention_sharing_steps = 2;
// Of a pair; nearly all of them are splits of their own.
inline constexpr int attention_short_steps = attention_lone_steps + attention_split_steps;

// All steps of one sequence and KV head, the first of which is unit `unit` of the launch.
template <int head_dim>
struct Pair {
  HeadTile<head_dim> tile;
  int sequence, unit, first, past;

  __device__ int first_split() const { return attention_split_of(first); }
  __device__ int splits() const { return attention_split_of(past - 1) + 1 - first_split(); }
};

// The steps of a launch: of one sequence after the other, of one KV head after the other.
template <int head_dim>
struct Work {
  using Tile = HeadTile<head_dim>;
  using Pair = nibble::Pair<head_dim>;
  static constexpr int partial_floats = attention_partial_floats_of(head_dim);
  // Blocks of the grid for a multiprocessor: of wider heads a block has all of its memory and registers.
  static constexpr int doubled = head_dim > 128 ? 1 : 2;
  const AttentionCudaArgs& args;
  const long long* before;  // of each sequence: steps and, in the high bits, splits (add_up_units)
  int group_bits;
  int units = 0, each = 1;  // of the launch, and of a block: deal()
  int runs_of_pair = 0;     // blocks that each pair has for itself; 0: runs follow one another over all pairs
  // No run is shorter than a pair, so none has steps in more than two blocks: the one that has its front
  // takes that first and hands its total on to the other, which takes the rest last and goes on from there.
  bool hands_on = false;

  // Once `before` is complete: which of the grid's blocks, `doubled` a multiprocessor, have runs. Runs are as
  // long as the longest must be, the last ones shorter or empty, so that most end where pairs of equal
  // lengths do; and a sixteenth longer where all do then: a split that is left for other blocks is written,
  // read and made absent again, 2 to 7 % of its keys' and values' bytes each time. longest: the steps of the
  // longest pair.
  __device__ void deal(int longest) {
    const int processors = static_cast<int>(gridDim.x) / doubled;
    units = static_cast<int>(before[args.sequence_count]) * args.cache.kv_heads;
    const int blocks = units >= attention_double_steps * processors ? doubled * processors : processors;
    each = max((units + blocks - 1) / blocks, 1);
    const int whole = (each + longest - 1) / max(longest, 1) * longest;
    if (16 * whole <= 17 * each) each = max(whole, 1);
    // A run of one step lies in one pair.
    if (1 < each && each < longest) deal_pairs(longest, doubled * processors);
    hands_on = longest <= each;
  }
  // A block that has parts of two pairs ends queries of both. So each pair may have blocks for itself. It has
  // as many as there are, or one where sharing would take as long. Runs follow one another all the same where
  // lengths differ much: then the longest pair's blocks would take longer. So would they where splits are
  // long.
  __device__ void deal_pairs(int longest, int blocks) {
    const int pairs = args.sequence_count * args.cache.kv_heads;
    if (pairs > blocks) return;
    const int runs = blocks / pairs, own = (longest + runs - 1) / runs;
    if (longest <= attention_short_steps ? own > each + attention_sharing_steps : 16 * own > 17 * each)
      return;
    each = longest <= own + attention_sharing_steps ? longest : own;
    runs_of_pair = (longest + each - 1) / each;
  }

  __device__ Tile tile_of(int sequence, int kv_head) const {
    const SequenceCuda rows = args.sequences[sequence];
    return {args, rows, kv_head, group_bits, 0, rows.row_count << group_bits};
  }
  __device__ Pair pair_of(int sequence, int kv_head) const {
    const int begin = static_cast<int>(before[sequence]);
    const int steps = static_cast<int>(before[sequence + 1]) - begin;
    const Tile tile = tile_of(sequence, kv_head);
    const int first = tile.first_step();
    return {tile, sequence, begin * args.cache.kv_heads + kv_head * steps, first, first + steps};
  }
  __device__ Pair pair_at(int unit) const {
    const int sequence = sequence_of(before, args.sequence_count, unit / args.cache.kv_heads);
    const int begin = static_cast<int>(before[sequence]);
    const int steps = static_cast<int>(before[sequence + 1]) - begin;
    return pair_of(sequence, (unit - begin * args.cache.kv_heads) / steps);
  }
  // Where a block's run begins, at the split's border that is nearest; one past the last block's is where all
  // ends.
  __device__ int begin_of(int block) const {
    if (runs_of_pair > 0) {
      const int index = block / runs_of_pair, kv_heads = args.cache.kv_heads, sequence = index / kv_heads;
      if (sequence >= args.sequence_count) return units;
      const Pair pair = pair_of(sequence, index - sequence * kv_heads);
      return border_at(pair, pair.unit + min((block - index * runs_of_pair) * each, pair.past - pair.first));
    }
    const int unit = min(block * each, units);
    return unit == units ? units : border_at(pair_at(unit), unit);
  }
  // The border that is nearest to a unit of a pair, or to its end.
  __device__ static int border_at(const Pair& pair, int unit) {
    const int step = pair.first + unit - pair.unit;
    int low = pair.first, high = pair.past;
    if (high - low > attention_uncut_steps) {
      const int split = attention_split_of(step);
      low = max(low, attention_split_begin(split));
      high = min(high, attention_split_begin(split + 1));
    }
    return pair.unit - pair.first + (2 * (step - low) < high - low ? low : high);
  }
  // Where the run ends that has a pair's front.
  __device__ int front_end_of(const Pair& pair) const {
    int end = pair.unit;
    if (runs_of_pair > 0) {
      const int steps = pair.past - pair.first;
      for (int length = each; end <= pair.unit; length += each)
        end = border_at(pair, pair.unit + min(length, steps));
    } else {
      for (int block = pair.unit / each + 1; end <= pair.unit; ++block) end = begin_of(block);
    }
    return end;
  }
  // What is left of a pair's split, for its first query; the next split's is apart() floats further on.
  __device__ float* partial(const Pair& pair, int split) const {
    const int at = static_cast<int>(before[pair.sequence] >> 32) + split;
    return args.workspace.partials + static_cast<std::size_t>(at) * apart() +
           static_cast<std::size_t>(pair.tile.kv_head * attention_tile * partial_floats);
  }
  __device__ std::size_t apart() const {
    return static_cast<std::size_t>(args.cache.kv_heads * attention_tile * partial_floats);
  }

  // Runs run(pair, first, past) for each pair that units [begin, end), at least one, have steps [first, past)
  // of, the last one first.
  template <class Run>
  __device__ __forceinline__ void for_each_pair(int begin, int end, const Run& run) const {
    const Pair last = pair_at(end - 1);
    int sequence = last.sequence, kv_head = last.tile.kv_head;
#pragma unroll 1
    for (;;) {
      const Pair pair = pair_of(sequence, kv_head);
      run(pair, pair.first + max(begin - pair.unit, 0), min(pair.past, pair.first + end - pair.unit));
      if (pair.unit <= begin) return;
      if (--kv_head >= 0) continue;
      kv_head = args.cache.kv_heads - 1;
      do --sequence;  // past those without steps
      while (static_cast<int>(before[sequence]) == static_cast<int>(before[sequence + 1]));
    }
  }
};

// What a block has of a pair that others have splits of too: splits [begin, end) of them, counted from the
// pair's first, and for its part of the ending queries [first_query, past_query).
struct Share {
  SequenceCuda sequence;
  int kv_head, splits, begin, end;
  int skipped;  // the front's splits but its first, at whose place its total is
  int first_query, past_query;
  float* partials;  // of the pair's first split

  __device__ bool is_cut() const { return end - begin < splits; }
};

// Of the first pair of a block's run [begin, end), or of the last one; nothing of a last one that is the
// first.
template <int head_dim>
__device__ __forceinline__ Share share_of(const Work<head_dim>& work, int begin, int end, bool last) {
  const Pair<head_dim> pair = work.pair_at(last ? end - 1 : begin);
  if (last && pair.unit <= begin) return {};
  Share share{};
  share.sequence = pair.tile.sequence;
  share.kv_head = pair.tile.kv_head;
  share.splits = pair.splits();
  const int first = pair.first + max(begin - pair.unit, 0),
            past = min(pair.past, pair.first + end - pair.unit);
  share.begin = attention_split_of(first) - pair.first_split();
  share.end = attention_split_of(past - 1) + 1 - pair.first_split();
  if (!share.is_cut()) return share;
  const int front_end = work.front_end_of(pair) - pair.unit + pair.first;
  share.skipped = attention_split_of(front_end - 1) - pair.first_split();
  const auto query_at = [&](int split) {
    return (split * pair.tile.count + share.splits - 1) / share.splits;
  };
  share.first_query = query_at(share.begin);
  share.past_query = query_at(share.end);
  share.partials = work.partial(pair, 0);
  return share;
}

}  // namespace nibble
