#include "runtime/state_store.h"

#include <algorithm>

#include "models/delta_mixer.h"

namespace nibble {

Result<StateStore> StateStore::allocate(const ModelConfig& config, int slots) {
  const auto keeps_state = [](const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; };
  StateStore store;
  const std::int64_t count = std::count_if(config.layers.begin(), config.layers.end(), keeps_state);
  if (count == 0) return store;
  const DeltaShape shape = delta_shape(config);
  const std::int64_t of_layer = slots * delta_state_bytes(shape);
  // Not cleared: the first position of a sequence looks at nothing before it.
  NIBBLE_ASSIGN(store.memory_, Buffer::allocate(static_cast<std::size_t>(count * of_layer)));
  std::byte* at = store.memory_.data();
  for (const LayerDescription& layer : config.layers) {
    store.layers_.push_back({.shape = shape, .memory = keeps_state(layer) ? at : nullptr});
    if (keeps_state(layer)) at += of_layer;
  }
  return store;
}

}  // namespace nibble
