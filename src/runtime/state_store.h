// The memory of states of sequences: every layer's slots that keeps one, taken once at the start.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace nibble {

class StateStore {
 public:
  // `slots` of each layer; nothing where no layer keeps a state.
  static Result<StateStore> allocate(const ModelConfig& config, int slots);

  // [layers], or none.
  std::span<const LayerState> layers() const { return layers_; }

 private:
  Buffer memory_;
  std::vector<LayerState> layers_;
};

}  // namespace nibble
