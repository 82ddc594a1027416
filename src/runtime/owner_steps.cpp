#include "runtime/owner_steps.h"

#include <algorithm>

namespace nibble {

WorkerLimits limits_of_owner(const WorkerLimits& limits) {
  if (limits.owners == 1) return limits;
  WorkerLimits own = limits;
  own.max_rows = limits.owner_rows;
  own.max_sequences = limits.owner_sequences;
  return own;
}

OwnerSteps::OwnerSteps(const WorkerLimits& limits) {
  if (limits.owners == 1) return;
  steps_.resize(static_cast<std::size_t>(limits.owners));
  for (Step& own : steps_) {
    own.batch.tokens.reserve(static_cast<std::size_t>(limits.owner_rows));
    own.batch.sequences.reserve(static_cast<std::size_t>(limits.owner_sequences));
    own.batch.logit_rows.reserve(static_cast<std::size_t>(limits.max_logit_rows));
    own.sequences.reserve(static_cast<std::size_t>(limits.owner_sequences));
  }
  places_.reserve(static_cast<std::size_t>(limits.max_sequences));
}

void OwnerSteps::divide(const Batch& batch, const OwnerSteps* behind) {
  for (Step& own : steps_) {
    own.batch.clear();
    own.batch.of_prompts = batch.of_prompts;
    own.sequences.clear();
  }
  places_.clear();
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    BatchSequence sequence = batch.sequences[i];
    Step& own = steps_[static_cast<std::size_t>(sequence.owner)];
    const int row = static_cast<int>(own.batch.tokens.size()),
              logit = static_cast<int>(own.batch.logit_rows.size());
    const auto tokens = batch.tokens.begin() + sequence.row_begin;
    own.batch.tokens.insert(own.batch.tokens.end(), tokens, tokens + sequence.row_count);
    for (int l = sequence.logit_begin; l < sequence.logit_begin + sequence.logit_count; ++l) {
      LogitRow wanted = batch.logit_rows[static_cast<std::size_t>(l)];
      wanted.row += row - sequence.row_begin;
      own.batch.logit_rows.push_back(wanted);
    }
    sequence.row_begin = row;
    sequence.logit_begin = logit;
    if (sequence.awaits >= 0 && behind != nullptr)
      sequence.awaits = behind->places_[static_cast<std::size_t>(sequence.awaits)];
    places_.push_back(static_cast<int>(own.batch.sequences.size()));
    own.batch.sequences.push_back(sequence);
    own.sequences.push_back(static_cast<int>(i));
  }
  int logits = 0;
  most_rows_ = 0;
  for (Step& own : steps_) {
    own.logit_begin = logits;
    logits += static_cast<int>(own.batch.logit_rows.size());
    most_rows_ = std::max(most_rows_, static_cast<int>(own.batch.tokens.size()));
  }
}

void OwnerSteps::refresh(const Batch& batch) {
  for (Step& own : steps_) {
    for (std::size_t i = 0; i < own.sequences.size(); ++i) {
      BatchSequence& sequence = own.batch.sequences[i];
      const int row = sequence.row_begin, logit = sequence.logit_begin, awaits = sequence.awaits;
      sequence = batch.sequences[static_cast<std::size_t>(own.sequences[i])];
      sequence.row_begin = row;
      sequence.logit_begin = logit;
      sequence.awaits = awaits;
    }
  }
}

}  // namespace nibble
