#include "runtime/kv_store.h"

#include <algorithm>

#include "checkpoint/architecture.h"

namespace nibble {
namespace {

std::int64_t layer_page_bytes(const ModelConfig& config, std::int64_t layer, DType dtype, int page_size) {
  return layer_cache(config, layer).values * page_size * static_cast<std::int64_t>(dtype_bytes(dtype));
}

}  // namespace

PageGroup page_group_of_layer(const ModelConfig& config, std::int64_t layer) {
  return page_window(config) > 0 && layer_cache(config, layer).window > 0 ? window_pages : full_pages;
}

int page_window(const ModelConfig& config) {
  std::int64_t window = 0, layers = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    window = std::max(window, layer_cache(config, layer).window);
    layers += layer_cache(config, layer).window > 0;
  }
  return layers < config.num_hidden_layers ? static_cast<int>(window) : 0;
}

std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size, PageGroup group) {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (page_group_of_layer(config, layer) == group)
      bytes += layer_page_bytes(config, layer, dtype, page_size);
  }
  return bytes;
}

Result<KvStore> KvStore::allocate(const ModelConfig& config, DType dtype, int page_size,
                                  const PageCounts& page_counts) {
  std::int64_t total = 0;
  for (const PageGroup group : {full_pages, window_pages})
    total += kv_page_bytes(config, dtype, page_size, group) * page_counts[group];
  KvStore store;
  // Not cleared: a position is written before any query may look at it.
  NIBBLE_ASSIGN(store.memory_, Buffer::allocate(static_cast<std::size_t>(total)));
  std::byte* at = store.memory_.data();
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const PageGroup group = page_group_of_layer(config, layer);
    const std::int64_t bytes = layer_page_bytes(config, layer, dtype, page_size) * page_counts[group];
    store.groups_.push_back(group);
    if (config.layers[static_cast<std::size_t>(layer)].mixer == Mixer::latent) {
      store.layers_.emplace_back();
      store.latents_.push_back({.vectors = at,
                                .dtype = dtype,
                                .pages = page_counts[group],
                                .page_size = page_size,
                                .rank = static_cast<int>(config.latent.rank),
                                .rotated = static_cast<int>(config.latent.rotated_dim)});
      at += bytes;
      continue;
    }
    const std::int64_t half_layer = bytes / 2;
    store.latents_.emplace_back();
    store.layers_.push_back({.keys = at,
                             .values = at + half_layer,
                             .dtype = dtype,
                             .pages = page_counts[group],
                             .page_size = page_size,
                             .kv_heads = static_cast<int>(config.num_key_value_heads),
                             .head_dim = static_cast<int>(config.head_dim)});
    at += 2 * half_layer;
  }
  return store;
}

}  // namespace nibble
