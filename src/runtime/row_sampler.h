// From a sequence's logits to its result, on the host: the token, its log-probability, and what else the
// sequence asked for.
#pragma once

#include <span>

#include "core/batch.h"
#include "ops/sample/logit_changes.h"
#include "ops/sample/sample.h"

namespace nibble {

// What changes a sequence's logits before this step's token behind so many drafts is chosen. Behind drafts no
// token is penalized: they are not in `answer`.
LogitChanges logit_changes_of(const BatchSequence& sequence, int drafts = 0);
// How it is chosen.
SampleParams sample_params_of(const BatchSequence& sequence, int drafts = 0);

// A thread's, with its room.
class RowSampler {
 public:
  explicit RowSampler(std::int64_t vocabulary);

  // logits: [sequence.logit_count, vocabulary]
  StepResult sample(const Batch& batch, const BatchSequence& sequence, const float* logits);

 private:
  void score(const BatchSequence& sequence, const LogitRow& row, std::span<const float> logits,
             const RowStatistics& statistics, std::size_t target);
  TokenId choose(std::span<const float> logits, TokenId likeliest, const LogitChanges& changes,
                 const SampleParams& params);
  TokenLogprob choose_behind(int drafts, const BatchSequence& sequence, std::span<const float> logits,
                             const RowStatistics& statistics);
  void fill_top(std::span<const float> logits, const RowStatistics& statistics, std::span<TokenLogprob> top);

  std::size_t vocabulary_;
  SampleWorkspace sampling_;
  LogitChangeRoom changes_;
};

}  // namespace nibble
