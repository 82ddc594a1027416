#include "runtime/state_store.h"

#include <algorithm>

#include "models/delta_mixer.h"

namespace nibble {

Result<StateStore> StateStore::allocate(const ModelConfig& config, const StateCounts& counts) {
  const auto keeps_state = [](const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; };
  StateStore store;
  const std::int64_t count = std::count_if(config.layers.begin(), config.layers.end(), keeps_state);
  if (count == 0) return store;
  DeltaShape shape = delta_shape(config);
  shape.drafts = counts.drafts;
  const std::int64_t slot_bytes = counts.slots * delta_state_bytes(shape);
  const std::int64_t of_layer = slot_bytes + counts.snapshots * delta_snapshot_bytes(shape);
  // Not cleared: the first position of a sequence looks at nothing before it.
  NIBBLE_ASSIGN(store.memory_, Buffer::allocate(static_cast<std::size_t>(count * of_layer)));
  std::byte* at = store.memory_.data();
  for (const LayerDescription& layer : config.layers) {
    if (!keeps_state(layer)) {
      store.layers_.push_back({});
      continue;
    }
    store.layers_.push_back({.shape = shape, .memory = at, .snapshots = at + slot_bytes});
    at += of_layer;
  }
  return store;
}

void StateStore::resume(int slot, int snapshot, ThreadPool& threads) const {
  threads.parallel_for(static_cast<int>(layers_.size()), [&](int begin, int end) {
    for (const LayerState& layer :
         layers().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))) {
      if (layer.memory != nullptr) layer.resume(slot, snapshot);
    }
  });
}

}  // namespace nibble
