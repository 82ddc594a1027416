// The memory of states of sequences and of their snapshots: slots of every layer that keeps one, taken once
// at the start.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace nibble {

class StateStore {
 public:
  // Nothing where no layer keeps a state.
  static Result<StateStore> allocate(const ModelConfig& config, const StateCounts& counts);

  // [layers], or none.
  std::span<const LayerState> layers() const { return layers_; }
  // In every layer a sequence's slot goes on from a snapshot.
  void resume(int slot, int snapshot, ThreadPool& threads) const;

 private:
  Buffer memory_;
  std::vector<LayerState> layers_;
};

}  // namespace nibble
