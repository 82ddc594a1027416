#include "runtime/cuda/cuda_state_store.h"

#include <algorithm>

#include "models/delta_mixer.h"
#include "tensor/cuda_check.h"

namespace nibble {

Result<CudaStateStore> CudaStateStore::allocate(const ModelConfig& config, const StateCounts& counts) {
  const auto keeps_state = [](const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; };
  CudaStateStore store;
  store.kept_layers_ =
      static_cast<std::size_t>(std::count_if(config.layers.begin(), config.layers.end(), keeps_state));
  if (store.kept_layers_ == 0) return store;
  DeltaShape shape = delta_shape(config);
  shape.drafts = counts.drafts;
  const std::int64_t slot_bytes = counts.slots * delta_state_bytes(shape);
  store.of_layer_ = static_cast<std::size_t>(slot_bytes + counts.snapshots * delta_snapshot_bytes(shape));
  // Not cleared: the first position of a sequence looks at nothing before it.
  NIBBLE_ASSIGN(store.memory_, DeviceBuffer::allocate(store.kept_layers_ * store.of_layer_));
  std::byte* at = store.memory_.data();
  store.first_ = {.shape = shape, .memory = at, .snapshots = at + slot_bytes};
  for (const LayerDescription& layer : config.layers) {
    if (!keeps_state(layer)) {
      store.layers_.push_back({});
      continue;
    }
    store.layers_.push_back({.shape = shape, .memory = at, .snapshots = at + slot_bytes});
    at += store.of_layer_;
  }
  return store;
}

void CudaStateStore::resume(int slot, int snapshot, cudaStream_t stream) const {
  if (kept_layers_ == 0) return;
  const std::int64_t bytes = delta_snapshot_bytes(first_.shape);
  // Layers lie as far apart as the rows of a matrix.
  cuda_check(cudaMemcpy2DAsync(
      first_.memory + slot * delta_state_bytes(first_.shape), of_layer_, first_.snapshots + snapshot * bytes,
      of_layer_, static_cast<std::size_t>(bytes), kept_layers_, cudaMemcpyDeviceToDevice, stream));
}

}  // namespace nibble
