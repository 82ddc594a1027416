// From a sequence's logits to its result, on the host: the token, its log-probability, and what else the
// sequence asked for.
#pragma once

#include <span>

#include "core/batch.h"
#include "ops/sample/logit_changes.h"
#include "ops/sample/sample.h"

namespace nibble {

// What changes a sequence's logits before this step's token is chosen.
LogitChanges logit_changes_of(const BatchSequence& sequence);
// How it is chosen.
SampleParams sample_params_of(const BatchSequence& sequence);

// A thread's, with its room.
class RowSampler {
 public:
  explicit RowSampler(std::int64_t vocabulary);

  // logits: [sequence.logit_count, vocabulary]
  StepResult sample(const Batch& batch, const BatchSequence& sequence, const float* logits);

 private:
  // `first`: the likeliest token of the unchanged row.
  TokenId choose(const BatchSequence& sequence, std::span<const float> logits, TokenId first);
  void fill_top(std::span<const float> logits, const RowStatistics& statistics, std::span<TokenLogprob> top);

  std::size_t vocabulary_;
  SampleWorkspace sampling_;
  LogitChangeRoom changes_;
};

}  // namespace nibble
