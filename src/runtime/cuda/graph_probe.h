// A decode step for a graph to show its bits with: as many sequences, tokens of different ids, at the first
// positions of pages that hold nothing yet. Where layers keep states a step changes them, so all sequences
// are at position 0, where nothing of a state is read; those that share a page have the same token.
#pragma once

#include <vector>

#include "checkpoint/model_config.h"
#include "core/batch.h"
#include "runtime/worker.h"

namespace nibble {

class GraphProbe {
 public:
  GraphProbe(int sequences, const ModelConfig& config, const WorkerLimits& limits);
  GraphProbe(const GraphProbe&) = delete;
  GraphProbe& operator=(const GraphProbe&) = delete;

  const Batch& batch() const { return batch_; }

 private:
  std::vector<PageId> tables_;
  SamplingParams greedy_{.temperature = 0};
  Batch batch_;
};

}  // namespace nibble
