// StateStore's twin on a GPU: the memory of states of sequences and of their snapshots, taken once at the
// start.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "ops/gated_delta/delta_state.h"
#include "tensor/device_buffer.h"

namespace nibble {

class CudaStateStore {
 public:
  // Nothing where no layer keeps a state.
  static Result<CudaStateStore> allocate(const ModelConfig& config, const StateCounts& counts);

  // [layers], or none; without memory of layers that keep none.
  std::span<const DeltaLayer> layers() const { return layers_; }
  // Queues: in every layer a sequence's slot goes on from a snapshot.
  void resume(int slot, int snapshot, cudaStream_t stream) const;

 private:
  DeviceBuffer memory_;
  std::vector<DeltaLayer> layers_;
  std::size_t of_layer_ = 0, kept_layers_ = 0;  // bytes of one, and how many there are
  DeltaLayer first_;                            // of those
};

}  // namespace nibble
