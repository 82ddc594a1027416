// One step as the scheduler plans it and the runtime runs it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "core/request.h"

namespace nibble {

using PageId = std::int32_t;

// Layers that look back equally far share page tables: those of full attention, and those with a window. A
// model whose layers all have windows keeps them as if they had none.
enum PageGroup : int { full_pages = 0, window_pages = 1 };
inline constexpr int page_groups = 2;

// [group]: page i holds positions [i * page_size, (i + 1) * page_size); -1 where the window has left it. The
// second is empty for a model without windows.
using PageTables = std::array<std::span<const PageId>, page_groups>;

// The state of a sequence behind its first `position` tokens, kept in a slot of its own for whoever begins
// alike.
struct StateSnapshot {
  int position = 0;  // a border of the state's chunks
  int slot = -1;
};

// The rows of one sequence: a decode step (one row) or a chunk of its prompt.
struct BatchSequence {
  RequestId request = 0;
  int row_begin = 0;
  int row_count = 0;
  int first_position = 0;  // position of the first row in the sequence
  PageTables pages;
  int state = -1;  // the slot of its state, of models whose layers keep one; what a slot held before counts
                   // for nothing at position 0
  // The snapshot's slot that its state is first copied from; -1: it goes on from what it is. All of a step's
  // are copied before any snapshot of that step is taken: a slot may be read and written by one step.
  int resumes = -1;
  // In the scheduler: those to take on the way, ascending and behind the first row. A step may pass their
  // positions.
  std::span<const StateSnapshot> snapshots;
  const SamplingParams* sampling = nullptr;  // lives in the scheduler until the step is committed
  // In the scheduler: what penalties look at. `answer` holds all tokens before the one this step samples.
  std::span<const TokenId> prompt, answer;
  // In the scheduler, where the token that this step samples is constrained. Its mask is found between the
  // commit of the step before and the choice; null: every token may come.
  ConstrainedAnswer* constrained = nullptr;
  // Room for results, in the scheduler, until the next step is planned.
  std::span<TokenLogprob> top;       // the likeliest tokens, as many as were asked for; filled if it samples
  std::span<float> target_logprobs;  // one a logit row that names a target
  std::span<int> target_ranks;       // likewise, where they are wanted
  std::span<TokenLogprob> target_top;  // as many a logit row that names a target as were asked for
  int logit_begin = 0;                 // its entries in Batch::logit_rows
  int logit_count = 0;
  // Its place in the step that runs, where that one's token is the first row's and not known yet (-1 in
  // Batch::tokens); -1: all tokens are known.
  int awaits = -1;
  bool prefill = false;  // rows of the prompt, not of the answer
  bool samples = false;  // the last logit row yields a token

  // What may come; empty: everything.
  std::span<const std::uint32_t> mask() const {
    return constrained == nullptr ? std::span<const std::uint32_t>() : constrained->mask();
  }
};

// A row whose logits are wanted.
struct LogitRow {
  int row = 0;
  TokenId target = -1;  // the prompt's next token, whose log-probability is wanted; -1: none
};

struct Batch {
  std::vector<TokenId> tokens;  // [rows]
  std::vector<BatchSequence> sequences;
  std::vector<LogitRow> logit_rows;

  bool empty() const { return sequences.empty(); }
  void clear() {
    tokens.clear();
    sequences.clear();
    logit_rows.clear();
  }
};

// What one sequence of the batch gave, beside what was written to its rooms; in the order of
// Batch::sequences.
struct StepResult {
  TokenId token = -1;  // -1: none sampled
  float logprob = 0;
  bool finite = true;  // false: a NaN or Inf among this sequence's logits; then nothing else counts
};

}  // namespace nibble
