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

// The rows of one sequence: a chunk of its prompt, or a decode step. That is one row, and one more for each
// draft: a guess of the next token, which holds if it is what is chosen before it.
struct BatchSequence {
  RequestId request = 0;
  int owner = 0;  // of the ranks that have sequences of their own; 0 where all have all
  int row_begin = 0;
  int row_count = 0;
  int draft_count = 0;     // of its rows: the last ones
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
  // In the scheduler, where the tokens that this step samples are constrained. Their masks are found between
  // the commit of the step before and the choice; null: every token may come.
  ConstrainedAnswer* constrained = nullptr;
  // Room for results, in the scheduler, until the next step is planned.
  // The likeliest tokens, as many as were asked for; filled for each token that it samples, in their order.
  std::span<TokenLogprob> top;
  std::span<TokenLogprob> behind_drafts;  // [draft_count]: what was chosen behind each draft that holds
  std::span<float> target_logprobs;       // one a logit row that names a target
  std::span<int> target_ranks;            // likewise, where they are wanted
  std::span<TokenLogprob> target_top;     // as many a logit row that names a target as were asked for
  int logit_begin = 0;                    // its entries in Batch::logit_rows
  int logit_count = 0;
  // Its place in the step that runs, where that one's token is the first row's and not known yet (-1 in
  // Batch::tokens); -1: all tokens are known.
  int awaits = -1;
  bool prefill = false;  // rows of the prompt, not of the answer
  bool samples = false;  // the last logit row yields a token, and so does that before each draft

  // Of its entries in Batch::logit_rows, where it samples, that of the token behind so many drafts.
  int logit_row_behind(int drafts) const { return logit_begin + logit_count - 1 - draft_count + drafts; }
  // Of `top`, the entries of the token behind so many drafts.
  std::span<TokenLogprob> top_behind(int drafts) const {
    const std::size_t count = top.size() / (static_cast<std::size_t>(draft_count) + 1);
    return top.subspan(static_cast<std::size_t>(drafts) * count, count);
  }
  // What may come behind so many drafts; empty: everything.
  std::span<const std::uint32_t> mask(int drafts = 0) const {
    return constrained == nullptr ? std::span<const std::uint32_t>() : constrained->mask(drafts);
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
  // Its rows are of prompts alone, and may be computed as such; false: of answers, or, where the scheduler
  // keeps no kinds apart, of both.
  bool of_prompts = false;

  bool empty() const { return sequences.empty(); }
  void clear() {
    tokens.clear();
    sequences.clear();
    logit_rows.clear();
    of_prompts = false;
  }
};

// What one sequence of the batch gave, beside what was written to its rooms; in the order of
// Batch::sequences.
struct StepResult {
  TokenId token = -1;  // the first that was sampled; -1: none
  float logprob = 0;
  int accepted = 0;    // drafts that hold: as many further tokens lie in BatchSequence::behind_drafts
  bool finite = true;  // false: a NaN or Inf among this sequence's logits; then nothing else counts
};

}  // namespace nibble
