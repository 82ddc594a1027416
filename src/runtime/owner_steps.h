// What each owner has of a step, where ranks have sequences of their own.
#pragma once

#include <span>
#include <vector>

#include "core/batch.h"
#include "runtime/worker.h"

namespace nibble {

// The limits of one owner's steps.
WorkerLimits limits_of_owner(const WorkerLimits& limits);

class OwnerSteps {
 public:
  struct Step {
    Batch batch;
    std::vector<int> sequences;  // of each of its sequences, the place in the whole batch
    int logit_begin = 0;         // of its rows of logits among all
  };

  OwnerSteps() = default;  // all ranks have all sequences
  explicit OwnerSteps(const WorkerLimits& limits);

  bool empty() const { return steps_.empty(); }
  int owners() const { return static_cast<int>(steps_.size()); }
  // Each owner's sequences with their rows, in the order they have in the whole. `behind`: the step that
  // those which await a token follow.
  void divide(const Batch& batch, const OwnerSteps* behind = nullptr);
  // The batch's sequences as they are by now: some may have ended, which then are empty.
  void refresh(const Batch& batch);

  const Step& of(int owner) const { return steps_[static_cast<std::size_t>(owner)]; }
  int most_rows() const { return most_rows_; }  // of one owner

 private:
  std::vector<Step> steps_;  // [owners]
  std::vector<int> places_;  // of each sequence of the whole batch, among its owner's
  int most_rows_ = 0;
};

}  // namespace nibble
